#!/bin/bash
# The four-letter words and the AdminServer's commands: their shapes (words.py) against a recording of the real
# server (golden.txt), but for those of different.txt. What is different is in $COMPAT_WORK/words-*.txt.diff.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   RECORD=1                      with SERVER=zookeeper: writes golden.txt anew
. "$(dirname "$0")/../lib.sh"
VENV=$(venv kazoo-client kazoo==2.11.0) || exit 2
server_command
export SRV_HTTP=$(free_port)
start_server words
OUT=$COMPAT_WORK/words-$SERVER.txt
"$VENV/bin/python" "$COMPAT/words/words.py" "127.0.0.1:$PORT" "$SRV_HTTP" > "$OUT" || { echo "PASSED 0 FAILED 1 SKIPPED 0"; exit 1; }
if [ -n "${RECORD:-}" ]; then
  [ "$SERVER" = zookeeper ] || die "only a real ZooKeeper is recorded: SERVER=zookeeper"
  cp "$OUT" "$COMPAT/words/golden.txt"
fi
diff -u "$COMPAT/words/golden.txt" "$OUT" > "$OUT.diff"
python3 - "$COMPAT/words/golden.txt" "$OUT" "$COMPAT/words/different.txt" <<'P'
import re, sys
cut = [re.split(r"(?m)^(?=== )", open(name).read())[1:] for name in sys.argv[1:3]]
known = dict(line.strip().split(": ", 1) for line in open(sys.argv[3]) if not line.startswith("#"))
if len(cut[0]) != len(cut[1]):
    sys.exit("there are %d answers instead of %d" % (len(cut[1]), len(cut[0])))
different = [a.splitlines()[0].removeprefix("== ") for a, b in zip(*cut) if a != b]
for name in different:
    print("SKIPPED" if name in known else "FAILED", name, known.get(name, ""))
failed = sum(name not in known for name in different)
skipped = len(different) - failed
print("PASSED %d FAILED %d SKIPPED %d" % (len(cut[0]) - failed - skipped, failed, skipped))
sys.exit(failed > 0)
P
