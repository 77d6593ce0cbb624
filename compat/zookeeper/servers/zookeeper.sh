#!/bin/bash
# Apache ZooKeeper 3.9 from Maven Central's jars, one server in the foreground. Contract: ../lib.sh.
. "$(dirname "$0")/../lib.sh"
jars
set -e
mkdir -p "$SRV_DIR/data"
[ -n "${SRV_ID:-}" ] && echo "$SRV_ID" > "$SRV_DIR/data/myid"
{
  echo "tickTime=${SRV_TICK:-2000}"
  echo "dataDir=$SRV_DIR/data"
  echo "maxClientCnxns=0"
  if [ -n "${SRV_HTTP:-}" ]; then
    echo "admin.serverAddress=127.0.0.1"
    echo "admin.serverPort=$SRV_HTTP"
  else
    echo "admin.enableServer=false"
  fi
  echo "4lw.commands.whitelist=*"
  echo "initLimit=10"
  echo "syncLimit=5"
  # A client port within the server lines (';4001') excludes clientPort.
  if [ -n "${SRV_PORT:-}" ] && ! grep -q '^server\..*;' <<<"${SRV_PEERS:-}${SRV_CFG:-}"; then
    echo "clientPortAddress=127.0.0.1"
    echo "clientPort=$SRV_PORT"
  fi
  if [ -n "${SRV_TLS_PORT:-}" ]; then
    echo "secureClientPort=$SRV_TLS_PORT"
    echo "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
    echo "ssl.keyStore.location=$SRV_TLS_PEM"
    echo "ssl.trustStore.location=$SRV_TLS_CA"
    echo "ssl.clientAuth=need"
  fi
  printf '%s\n' "${SRV_PEERS:-}" "${SRV_CFG:-}"
} > "$SRV_DIR/zoo.cfg"
# Small and quick to start, unless SRV_JAVA asks for a JVM as in production (the bench does).
exec java ${SRV_JAVA:--Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1} -cp "$JARS/*" \
  -Dfile.encoding=UTF-8 -Djava.awt.headless=true -Dorg.slf4j.simpleLogger.defaultLogLevel="${SRV_LOG:-info}" \
  ${SRV_JAAS:+-Djava.security.auth.login.config=$SRV_JAAS} ${SRV_JVM:-} \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$SRV_DIR/zoo.cfg"
