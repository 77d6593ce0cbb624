#!/bin/bash
# `lockkeeper server` with its ZooKeeper front end, one server in the foreground. Contract: ../lib.sh.
#
# What tests ask of ZooKeeper by zoo.cfg lines and system properties becomes our settings here. What has
# no counterpart is named on the standard error, so that a failing test shows what it asked for in vain.
set -e
[ -n "${LOCKKEEPER_BIN:-}" ] || { echo "LOCKKEEPER_BIN names no server" >&2; exit 2; }
set_to() { export "LOCKKEEPER_$1=$2"; }
# The value that a zoo.cfg key or a property was last given; empty if none was.
asked() {
  { tr ' ' '\n' <<<"${SRV_JVM:-}" | sed -n 's/^-D//p'; echo "${SRV_CFG:-}"; } |
    sed -n "s/^\(zookeeper\.\)\?$1=//p" | tail -1
}

mkdir -p "$SRV_DIR"
set_to ID "${SRV_ID:-1}"
set_to DATA_DIR "$SRV_DIR/data"
set_to LISTEN_UNIX "$SRV_DIR/lockkeeper.sock"
set_to LOG_LEVEL "${SRV_LOG:-info}"
set_to ZOOKEEPER_TICK_TIME "${SRV_TICK:-2000}ms"
set_to ZOOKEEPER_WORDS_WHITELIST '*'
# give KEY ASKED: the setting, if the test asked for it.
give() { local value; value=$(asked "$2"); [ -z "$value" ] || set_to "$1" "$value"; }
give ZOOKEEPER_SUPER_DIGEST DigestAuthenticationProvider.superDigest
give ZOOKEEPER_TTL_NODES extendedTypesEnabled
give ZOOKEEPER_ENFORCE_QUOTA enforceQuota
give ZOOKEEPER_SKIP_ACL skipACL
give ZOOKEEPER_READ_ONLY readonlymode.enabled
give ZOOKEEPER_RECONFIG reconfigEnabled
# As zookeeper.sh has it, unless a test asks.
set_to ZOOKEEPER_MAX_CLIENT_CONNECTIONS 0
give ZOOKEEPER_MAX_CLIENT_CONNECTIONS maxClientCnxns
give ZOOKEEPER_X509_SUPER X509AuthenticationProvider.superUser
give ZOOKEEPER_SASL_SUPER superUser
give ZOOKEEPER_MAX_BUFFER jute.maxbuffer
interval=$(asked znode.container.checkIntervalMs)
[ -z "$interval" ] || set_to ZOOKEEPER_CONTAINER_CHECK_INTERVAL "${interval}ms"
[ "$(asked enforce.auth.enabled)" != true ] || give ZOOKEEPER_REQUIRE_AUTH enforce.auth.schemes
[ "$(asked sessionRequireClientSASLAuth)" != true ] || set_to ZOOKEEPER_REQUIRE_AUTH sasl
if [ "${LOCKKEEPER_ZOOKEEPER_REQUIRE_AUTH:-}" = sasl ] && [ -z "${SRV_JAAS:-}" ]; then
  # ZooKeeper starts without users, and lets nobody in; we want to be told whose login is asked for.
  SRV_JAAS=$SRV_DIR/jaas.conf
  echo 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_nobody="'$RANDOM$RANDOM'"; };' > "$SRV_JAAS"
fi
[ -z "${SRV_JAAS:-}" ] || set_to ZOOKEEPER_JAAS "$SRV_JAAS"
[ -z "$(asked localSessionsEnabled)" ] || echo "asked in vain: localSessionsEnabled=$(asked localSessionsEnabled)" >&2

# The peers' ports: what ZooKeeper would use for its quorum. A client port may stand behind a ';'. The ports for
# ZooKeeper's elections, which we have no use for, are those of our own clients: so a server that joins finds
# whom to ask. One that calls itself an observer follows the others, as ZooKeeper's does, whether or not they list it.
members= own= native= role= asked_of=
while IFS= read -r line; do
  id=$(sed -n 's/^server\.\([0-9]*\)=.*/\1/p' <<<"$line")
  [ -n "$id" ] || continue
  address=$(sed 's/^[^=]*=\([^:]*\):\([0-9]*\):.*/\1:\2/' <<<"$line")
  address=127.0.0.1:${address##*:}
  admin=127.0.0.1:$(sed 's/^[^=]*=[^:]*:[0-9]*:\([0-9]*\).*/\1/' <<<"$line")
  case $line in *:observer*) ;; *) members=${members:+$members,}$id=$address;; esac
  if [ "$id" != "${SRV_ID:-1}" ]; then
    asked_of=${asked_of:-$admin}
  else
    own=$address native=$admin
    case $line in *:observer*) role=observer;; esac
    case $line in *';'*) SRV_PORT=${line##*[;:]};; esac
  fi
done <<<"${SRV_PEERS:-}"
set_to LISTEN "${SRV_HTTP:+127.0.0.1:$SRV_HTTP}"
[ -n "${SRV_HTTP:-}" ] || set_to LISTEN "${native:-127.0.0.1:0}"
set_to LISTEN_PEER "${own:-127.0.0.1:0}"
if [ "$role" = observer ] && [ -n "$asked_of" ]; then
  set_to JOIN true
  (
    for key in $(compgen -e LOCKKEEPER_); do [ "$key" = LOCKKEEPER_BIN ] || unset "$key"; done
    until "$LOCKKEEPER_BIN" --url "lockkeeper://$asked_of" cluster add "$SRV_ID=$own" --learner; do
      kill -0 $$ || exit
      sleep 0.2
    done
  ) &
elif [ "$(grep -c . <<<"${members//,/$'\n'}")" -gt 1 ]; then
  set_to CLUSTER "$members"
fi
[ -n "${SRV_PORT:-}" ] && set_to ZOOKEEPER_LISTEN "127.0.0.1:$SRV_PORT"
if [ -n "${SRV_TLS_PORT:-}" ]; then
  set_to ZOOKEEPER_TLS_LISTEN "127.0.0.1:$SRV_TLS_PORT"
  set_to ZOOKEEPER_TLS_CERTIFICATE "$SRV_TLS_PEM"
  set_to ZOOKEEPER_TLS_AUTHORITIES "$SRV_TLS_CA"
fi
# zookeeper-client's tests wait for ZooKeeper's words when a server is left alone.
if [ "$(asked readonlymode.enabled)" = true ]; then
  exec > >(exec sed -u 's/no majority: read-only service/Read-only server started: &/') 2>&1
fi
exec "$LOCKKEEPER_BIN" server
