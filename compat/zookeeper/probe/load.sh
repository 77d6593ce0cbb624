#!/bin/bash
# The classic lock recipe over ZooKeeper's protocol, three servers, durable: pairs/s (probe/src/load.rs).
#
#   SERVER=zookeeper|lockkeeper|both   which server (lib.sh)
#   LOAD="--workers 64,1024 --runs 3 --seconds 10"
#   CLIENT=library                through the crate zookeeper-client, and not the lean program
. "$(dirname "$0")/../lib.sh"
probe "${CLIENT:-}"
export LOCKKEEPER_PROFILE=release
measure() {
  echo "== $1"
  # A JVM as in production, which has to be warm before it is measured.
  SERVER=$1 ZK_SERVER_CMD= bash -c '. "$COMPAT/lib.sh"; unset ZK_SERVER_CMD; server_command
    SRV_JAVA=${SRV_JAVA:--Xmx2g} SRV_LOG=${SRV_LOG:-warn} exec "$0" load --warm "$1" ${CLIENT:+--client "$CLIENT"} ${LOAD:-}' "$PROBE" "$2"
}
case $SERVER in
  both) measure zookeeper 75 && measure lockkeeper 5;;
  zookeeper) measure zookeeper 75;;
  *) measure "$SERVER" 5;;
esac
