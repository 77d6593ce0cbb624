#!/bin/bash
# node-zookeeper-client's watches, and the classic lock recipe with it (main.js), on one server and on three.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
. "$(dirname "$0")/../lib.sh"
need node nodejs; need npm npm
server_command
DIR=$COMPAT_WORK/node
mkdir -p "$DIR"
cp "$COMPAT"/node/{package.json,package-lock.json,main.js} "$DIR"
(cd "$DIR" && npm ci --no-audit --no-fund --silent >&2) || die "node-zookeeper-client could not be fetched from npm"
code=0
start_server node
echo "one server:"; node "$DIR/main.js" "127.0.0.1:$PORT" || code=1
stop_servers
start_cluster node
echo "three servers:"; node "$DIR/main.js" "$PORTS" || code=1
exit $code
