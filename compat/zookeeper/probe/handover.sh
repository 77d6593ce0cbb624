#!/bin/bash
# One lock with two and with twenty thousand waiters, three servers (probe/src/handover.rs).
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   HANDOVER="--waiters 2,20000"
. "$(dirname "$0")/../lib.sh"
need cargo cargo
(cd "$COMPAT/probe" && cargo build -q --locked --release --target-dir "$COMPAT_WORK/target-probe") || die "the probe does not build"
export LOCKKEEPER_PROFILE=release SRV_JAVA=${SRV_JAVA:--Xmx2g} SRV_LOG=${SRV_LOG:-warn}
server_command
exec "$COMPAT_WORK/target-probe/release/lockkeeper-zookeeper-probe" handover ${HANDOVER:-}
