#!/bin/bash
# What one client does that is long, and how long others wait for it, three servers (probe/src/stalls.rs).
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   STALLS="--watches 200000 --ephemerals 100000 --servers 3"
. "$(dirname "$0")/../lib.sh"
probe
export LOCKKEEPER_PROFILE=release SRV_JAVA=${SRV_JAVA:--Xmx4g} SRV_LOG=${SRV_LOG:-info}
server_command
exec "$PROBE" stalls ${STALLS:-}
