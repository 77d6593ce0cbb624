#!/bin/bash
# Runs the programs of examples/zookeeper, as tests.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
. "$(dirname "$0")/lib.sh"
jars; need javac default-jdk-headless; need nc netcat-openbsd
VENV=$(venv kazoo-client kazoo==2.11.0) || exit 2
server_command
CLASSES=$COMPAT_WORK/examples-classes
mkdir -p "$CLASSES"
javac -nowarn -d "$CLASSES" -cp "$JARS/*" "$ROOT"/examples/zookeeper/*.java || die "the examples do not compile"
JAVA="java -Xmx128m -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=off -cp $CLASSES:$JARS/*"
export ZKCLI="$JAVA org.apache.zookeeper.ZooKeeperMain"
set -f # the * in the class path is Java's
passed=0 failed=0
count() { if [ "$1" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }

vent() { # NAME SERVERS
  timeout 300 $JAVA HiveVent "$2" 8; local code=$?
  [ $code = 0 ] && echo "ok      HiveVent, $1" || echo "FAILED  HiveVent, $1"
  count $code
}
start_cluster examples
vent "three servers" "$PORTS"
stop_servers
start_server examples
vent "one server" "127.0.0.1:$PORT"
verify() { "$VENV/bin/python" "$ROOT/examples/zookeeper/verify.py" "127.0.0.1:$PORT" "$@"; count $?; }
verify kazoo "$VENV/bin/python" "$ROOT/examples/zookeeper/dedup_worker.py"
verify curator $JAVA DedupWorker
echo "PASSED $passed FAILED $failed SKIPPED 0"
[ $failed = 0 ]
