#!/bin/bash
# zkCli.sh (org.apache.zookeeper.ZooKeeperMain of 3.9.5) through session.txt; what it prints must be what it
# prints of a real ZooKeeper (golden.txt), but for what transcript.py masks.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   RECORD=1                      with SERVER=zookeeper: writes golden.txt anew
. "$(dirname "$0")/../lib.sh"
need python3 python3
jars; server_command
start_server zkcli -Dzookeeper.enforceQuota=true
# Without JLine the client reads its standard input line by line and prints no prompts.
CLASSES=$(ls "$JARS"/*.jar | grep -v jline | tr '\n' :)
cli() { java -Xmx128m -XX:TieredStopAtLevel=1 -cp "$CLASSES" -Dorg.slf4j.simpleLogger.defaultLogLevel=off \
  org.apache.zookeeper.ZooKeeperMain -server "127.0.0.1:$PORT" "$@"; }
OUT=$COMPAT_WORK/zkcli-$SERVER.txt
COMMANDS=$(grep -v -e '^#' -e '^$' "$COMPAT/zkcli/session.txt")
{ n=0; while IFS= read -r line; do n=$((n + 1)); printf '%s\nstat /===%s\n' "$line" "$n"; done <<<"$COMMANDS"; echo quit; } |
  timeout 600 bash -c "$(declare -f cli); CLASSES='$CLASSES' PORT=$PORT; cli -waitforconnection" 2>&1 |
  tee "$OUT.raw" | python3 "$COMPAT/zkcli/transcript.py" "$COMPAT/zkcli/session.txt" > "$OUT"
# One command each, as scripts use it: what is printed, and the exit code.
once() { echo "\$ zkCli.sh $*"; cli "$@" 2>&1 | grep -v -e '^Connecting to' -e '^WATCHER' -e '^WatchedEvent' -e '^$' | sed 's/^/  /'; echo "  exit ${PIPESTATUS[0]}"; }
{ once ls /; once create /once x; once get /once; once get /none; once delete /once; once nonsense; } >> "$OUT"
if [ -n "${RECORD:-}" ]; then
  [ "$SERVER" = zookeeper ] || die "only a real ZooKeeper is recorded: SERVER=zookeeper"
  cp "$OUT" "$COMPAT/zkcli/golden.txt"
fi
total=$(grep -c '^[>$] ' "$COMPAT/zkcli/golden.txt")
if diff -u "$COMPAT/zkcli/golden.txt" "$OUT"; then echo "PASSED $total FAILED 0 SKIPPED 0"; exit 0; fi
# How many commands have another answer: the transcripts cut at the commands and compared one by one.
python3 - "$COMPAT/zkcli/golden.txt" "$OUT" <<'P'
import re, sys
cut = [re.split(r"(?m)^(?=[>$] |events:)", open(name).read()) for name in sys.argv[1:]]
failed = sum(a != b for a, b in zip(*cut)) + abs(len(cut[0]) - len(cut[1]))
print("PASSED %d FAILED %d SKIPPED 0" % (len(cut[0]) - failed, failed))
P
exit 1
