#!/bin/bash
# kazoo's own tests (its wheel carries them as kazoo.tests), run unchanged against a server of ours to
# start and stop: external.py stands where kazoo's managed ZooKeeper was.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   KAZOO_SERVERS=1               servers a cluster (3: test_client and test_connection, unless told)
#   KAZOO_FILES='test_lock.py …'  only these
#   KAZOO_ARGS='-k name'          further arguments of pytest
. "$(dirname "$0")/../lib.sh"
need openssl openssl
server_command
# setuptools: kazoo's tests use pkg_resources.
VENV=$(venv kazoo kazoo==2.11.0 pytest==8.4.2 pytest-timeout==2.4.0 gevent==25.9.1 eventlet==0.40.3 \
  pure-sasl==0.6.2 objgraph==3.6.2 'setuptools<80') || exit 2
TESTS=$(echo "$VENV"/lib/python3*/site-packages/kazoo/tests)
unset CI
SERVERS=${KAZOO_SERVERS:-1}
export ZOOKEEPER_VERSION=${ZOOKEEPER_VERSION:-3.9.5} ZOOKEEPER_CLUSTER_SIZE=$SERVERS
export ZOOKEEPER_PORT_OFFSET=${KAZOO_PORTS:-$((20000 + RANDOM % 500 * 20))}
export PYTHONPATH=$COMPAT/kazoo PYTHONWARNINGS=ignore
OUT=$COMPAT_WORK/kazoo-$SERVER-$SERVERS
rm -rf "$OUT"; mkdir -p "$OUT"; cd "$OUT"
export KZ_KEEP_LOGS=$OUT
all() {
  if [ "$SERVERS" = 1 ]; then (cd "$TESTS" && ls test_*.py | grep -v '^test_build.py$'); # the packaging of kazoo
  else echo test_client.py test_connection.py; fi
}
for file in ${KAZOO_FILES:-$(all)}; do
  "$VENV/bin/python" -m pytest -p external -q --timeout="${KAZOO_TIMEOUT:-360}" --timeout-method=thread \
    -p no:cacheprovider --junitxml="$OUT/$file.xml" ${KAZOO_ARGS:-} "$TESTS/$file" > "$OUT/$file.log" 2>&1
  echo "$file: $(grep -aE '[0-9]+ (passed|failed|skipped|error).* in ' "$OUT/$file.log" | tail -1)"
done
"$VENV/bin/python" "$COMPAT/kazoo/junit_count.py" "$OUT"/*.xml
