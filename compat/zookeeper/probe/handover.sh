#!/bin/bash
# One lock with two and with twenty thousand waiters, three servers (probe/src/handover.rs).
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   HANDOVER="--waiters 2,20000"
. "$(dirname "$0")/../lib.sh"
probe
export LOCKKEEPER_PROFILE=release SRV_JAVA=${SRV_JAVA:--Xmx2g} SRV_LOG=${SRV_LOG:-warn}
server_command
exec "$PROBE" handover ${HANDOVER:-}
