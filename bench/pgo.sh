#!/bin/bash
# The program optimised by what it does under load (profile-guided optimisation): a release build that
# counts, three servers under the lock recipe of ZooKeeper's clients and one under our own clients, and
# a release build that lays the code out by those counts. Ten minutes on two cores; the result is
# target/pgo/lockkeeper (LOCKKEEPER_BIN=… for what measures).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# Absolute: what counts runs elsewhere.
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
work=$target_dir/pgo
host=$(rustc --version --verbose | sed -n 's/^host: //p')
# The compiler's own: another version may not read what its programs write.
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
[ -x "$profdata" ] || { echo "llvm-profdata is missing: rustup component add llvm-tools" >&2; exit 2; }

# With a target named, the flags are for the program, and not for what its build runs.
build() {
  RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build --release --locked --package lockkeeper-cli --target "$host" \
    --target-dir "$work/build" --manifest-path "$root/Cargo.toml"
  cp "$work/build/$host/release/lockkeeper" "$2"
}

rm -rf "$work/counts"
mkdir -p "$work/counts"
build "-Cprofile-generate=$work/counts" "$work/lockkeeper-counting"

LOCKKEEPER_BIN=$work/lockkeeper-counting SERVER=lockkeeper \
  LOAD="--workers 64,1024 --runs 2 --seconds 5" "$root/compat/zookeeper/probe/load.sh"

scratch=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || { kill "$server" && wait "$server"; } || true
  rm -rf "$scratch"
}
trap finish EXIT
LOCKKEEPER_LISTEN_UNIX=$scratch/socket "$work/lockkeeper-counting" server --data-dir "$scratch/data" --listen 127.0.0.1:0 \
  >"$scratch/log" 2>&1 &
server=$!
url=unix:$scratch/socket
"$work/lockkeeper-counting" lock --quiet --url "$url" --wait 30s is-it-up -- true || { cat "$scratch/log" >&2; exit 1; }
for load in "uncontended --workers 64" "uncontended --workers 1024" "contended --workers 64"; do
  # shellcheck disable=SC2086 # They are several words.
  "$work/lockkeeper-counting" bench $load --duration 5s --url "$url"
done
# What a process has counted is written as it ends.
kill "$server"
wait "$server" || true
server=

"$profdata" merge --output "$work/counts.profdata" "$work"/counts/*.profraw
build "-Cprofile-use=$work/counts.profdata" "$work/lockkeeper"
echo "$work/lockkeeper"
