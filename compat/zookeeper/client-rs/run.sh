#!/bin/bash
# The Rust crate zookeeper-client's own tests (its package carries them). They start servers in Docker
# through the crate testcontainers; testcontainers/ here stands in its place and runs ZK_SERVER_CMD.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   CLIENT_RS_FEATURES=sasl-digest-md5,tls   '' for a server that has neither
#   CLIENT_RS_ARGS='name'         arguments of the test program
. "$(dirname "$0")/../lib.sh"
need cargo cargo; need python3 python3
server_command
VERSION=0.11.2
DIR=$COMPAT_WORK/zookeeper-client-$VERSION
if [ ! -e "$DIR/.complete" ]; then
  FETCH=$COMPAT_WORK/fetch; mkdir -p "$FETCH"; : > "$FETCH/lib.rs"
  printf '[package]\nname="fetch"\nversion="0.0.0"\nedition="2021"\n[lib]\npath="lib.rs"\n[dependencies]\nzookeeper-client="=%s"\n[workspace]\n' \
    $VERSION > "$FETCH/Cargo.toml"
  SOURCE=$(cd "$FETCH" && cargo metadata --format-version 1 -q | python3 -c "import json, os, sys
for p in json.load(sys.stdin)['packages']:
    if p['name'] == 'zookeeper-client':
        print(os.path.dirname(p['manifest_path']))")
  [ -n "$SOURCE" ] || die "zookeeper-client $VERSION could not be fetched from crates.io"
  rm -rf "$DIR"; cp -r "$SOURCE" "$DIR"
  printf '\n[dev-dependencies.testcontainers]\npath = "%s/client-rs/testcontainers"\n\n[workspace]\n' "$COMPAT" >> "$DIR/Cargo.toml"
  touch "$DIR/.complete"
fi
cd "$DIR"
export ZK_TEST_TLS=${ZK_TEST_TLS:-false} RUST_LOG=off
FEATURES=${CLIENT_RS_FEATURES-sasl-digest-md5,tls}
LOG=$COMPAT_WORK/client-rs-$SERVER.log
BUILD="--test zookeeper --target-dir $COMPAT_WORK/target-client-rs ${FEATURES:+--features $FEATURES}"
cargo test -q --no-run $BUILD >&2 || die "zookeeper-client's tests do not build"
timeout "${CLIENT_RS_TIMEOUT:-1800}" cargo test $BUILD -- --test-threads="${CLIENT_RS_THREADS:-2}" ${CLIENT_RS_ARGS:-} > "$LOG" 2>&1
python3 "$COMPAT/client-rs/libtest_count.py" < "$LOG"
