#!/bin/bash
# Runs the suites named, or all of them, one after the other; ends with a line for each.
#
#   all.sh [--short] [kazoo kazoo-3 client-rs curator zkcli words go node examples differential]
. "$(dirname "$0")/lib.sh"
server_command
SHORT=
[ "${1:-}" = --short ] && { SHORT=1; shift; }
# The short form is what fits into a few minutes of every change: all kinds of clients, less of each.
if [ -n "$SHORT" ]; then
  export KAZOO_FILES=${KAZOO_FILES:-test_client.py test_lock.py test_watchers.py}
  export CURATOR_SERVERS=${CURATOR_SERVERS:-1} DIFFERENTIAL=${DIFFERENTIAL:---cases 200 --seed 9}
fi
SUITES=${*:-kazoo ${SHORT:-kazoo-3 client-rs} curator zkcli words go node examples differential}
summary='' code=0
for suite in $SUITES; do
  case $suite in
    1) continue;; # of the short form
    kazoo-3) command="env KAZOO_SERVERS=3 KAZOO_FILES= $COMPAT/kazoo/run.sh";;
    examples) command=$COMPAT/examples.sh;;
    differential) command=$COMPAT/probe/run.sh;;
    *) command=$COMPAT/$suite/run.sh;;
  esac
  echo "== $suite ($SERVER)"
  begin=$SECONDS out=$COMPAT_WORK/all-$suite.txt
  $command 2>&1 | tee "$out"
  result=${PIPESTATUS[0]}
  [ "$result" = 0 ] || code=1
  counts=$(grep -a '^PASSED' "$out" | awk '{p += $2; f += $4; s += $6} END {printf "%d passed, %d failed, %d skipped", p, f, s}')
  [ "$result" = 2 ] && counts="DID NOT RUN: $(grep -a '^cannot run' "$out" | tail -1)"
  summary+=$(printf '%-14s %s (%d s)' "$suite" "$counts" $((SECONDS - begin)))$'\n'
done
echo "== $SERVER"
printf '%s' "$summary"
exit $code
