#!/bin/bash
# go-zookeeper's locks and watches (main.go), on one server and on three.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
. "$(dirname "$0")/../lib.sh"
need go golang-go
server_command
PROGRAM=$COMPAT_WORK/go-suite
(cd "$COMPAT/go" && go build -o "$PROGRAM" .) || die "the Go program does not build (module proxy?)"
code=0
start_server go
echo "one server:"; "$PROGRAM" "127.0.0.1:$PORT" "$SERVER" || code=1
stop_servers
start_cluster go
echo "three servers:"; "$PROGRAM" "$PORTS" "$SERVER" || code=1
exit $code
