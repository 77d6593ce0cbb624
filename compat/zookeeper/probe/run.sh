#!/bin/bash
# The same random steps for a real ZooKeeper and for the server under test (probe/src/differential).
#
#   SERVER=zookeeper|lockkeeper      the server under test (lib.sh); zookeeper: against itself
#   DIFFERENTIAL="--cases 200 --seed 1"
. "$(dirname "$0")/../lib.sh"
need cargo cargo
jars
server_command
export REFERENCE_CMD="$COMPAT/servers/zookeeper.sh"
cd "$COMPAT/probe" && cargo build -q --locked --target-dir "$COMPAT_WORK/target-probe" || die "the probe does not build"
exec "$COMPAT_WORK/target-probe/debug/lockkeeper-zookeeper-probe" differential ${DIFFERENTIAL:-}
