#!/bin/bash
# A million znodes and two hundred thousand watches, three servers (probe/src/full.rs).
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   FULL="--znodes 1000000 --watches 200000"
. "$(dirname "$0")/../lib.sh"
probe
export LOCKKEEPER_PROFILE=release SRV_JAVA=${SRV_JAVA:--Xmx4g} SRV_LOG=${SRV_LOG:-warn}
server_command
exec "$PROBE" full ${FULL:-}
