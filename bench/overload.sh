#!/bin/bash
# What an unaffected lock notices while thousands of sessions end and callers flood: the servers, the
# load and the onlooker on this machine, with `lockkeeper bench overload`. Ends with 1 if a p99 is
# more than five times that of calm.
#
#   SERVERS=3          a cluster; or 1, which gets a core of its own and a flood above its capacity
#   DATA=DIR           where the servers keep their data (a directory of its own in /dev/shm)
#   RUNS=2
#   LOAD="--sessions 5000 --locks 50000 --workers 4096 --duration 3s"
#
# Load and servers share the machine's cores here, and what is to be measured are the servers and
# not who gets a core. So whatever runs in production on machines of its own goes first: servers and
# onlooker at real-time priority 10, the load at 5 (root, or CAP_SYS_NICE). On a disk, the kernel's
# block workers go before all of them meanwhile, or each fdatasync waits for a core behind the load;
# and beside a server that fills its core, so does the kernel's thread for that core's packets.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
lockkeeper=${LOCKKEEPER_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/lockkeeper}
: "${SERVERS:=3}" "${RUNS:=2}"
on_servers=() on_load=()
if [ "$SERVERS" = 1 ]; then
  : "${LOAD:=--sessions 16 --locks 200 --workers 4096 --duration 3s}"
  on_servers=(taskset -c 0) on_load=(taskset -c 1)
fi
: "${LOAD:=--sessions 5000 --locks 50000 --workers 4096 --duration 3s}"
chrt -r 10 true 2>/dev/null || { echo "real-time priority can't be had here: run this as root" >&2; exit 1; }
ulimit -n "$(ulimit -Hn)"

scratch=$(mktemp -d "${DATA:-/dev/shm}/lockkeeper-overload.XXXXXX")
servers=() raised=() rt_runtime=
finish() {
  for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  # As they were: ordinary, and each with the niceness that it had.
  for thread in "${raised[@]}"; do
    chrt -o -p 0 "${thread%:*}" 2>/dev/null && renice -n "${thread#*:}" -p "${thread%:*}" >/dev/null || true
  done
  [ -z "$rt_runtime" ] || echo "$rt_runtime" >/proc/sys/kernel/sched_rt_runtime_us
  rm -rf "$scratch"
}
trap finish EXIT

raise() {
  local pid
  for pid in $(pgrep "$1"); do
    raised+=("$pid:$(ps -o ni= -p "$pid" | tr -d ' ')")
    chrt -f -p 20 "$pid" || true
  done
}
[ -z "${DATA:-}" ] || raise '^kworker/[0-9]+:[0-9]*H'
if [ "$SERVERS" = 1 ]; then
  raise '^ksoftirqd/'
  rt_runtime=$(cat /proc/sys/kernel/sched_rt_runtime_us)
  echo -1 >/proc/sys/kernel/sched_rt_runtime_us
fi

read -ra ports < <(python3 -c 'import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))' "$SERVERS")
cluster='' url=lockkeeper://
for id in $(seq "$SERVERS"); do
  cluster+=${cluster:+,}$id=127.0.0.1:${ports[SERVERS + id - 1]}
  url+=127.0.0.1:${ports[id - 1]},
done
url=${url%,}
for id in $(seq "$SERVERS"); do
  LOCKKEEPER_LOG=warn "${on_servers[@]}" chrt -r 10 "$lockkeeper" server --data-dir "$scratch/$id" --id "$id" --cluster "$cluster" \
    --listen "127.0.0.1:${ports[id - 1]}" --listen-peer "127.0.0.1:${ports[SERVERS + id - 1]}" >"$scratch/$id.log" 2>&1 &
  servers+=($!)
done
"$lockkeeper" lock --quiet --url "$url" --wait 30s is-it-up -- true

for _ in $(seq "$RUNS"); do
  # shellcheck disable=SC2086 # They are several words.
  "${on_load[@]}" chrt -r 5 "$lockkeeper" bench overload $LOAD --ttl 30s --url "$url" >"$scratch/figures" &
  load=$!
  until onlooker=$(pgrep -P $load) || ! kill -0 $load 2>/dev/null; do sleep 0.05; done
  [ -z "$onlooker" ] || chrt -a -r -p 10 "$onlooker"
  wait $load
  cat "$scratch/figures"
  awk '/^calm_p99_ms/ { calm = $2; next }
    /_p99_ms/ {
      sub(/_p99_ms/, "", $1)
      printf "%s: p99 %.1f times that of calm\n", $1, $2 / calm
      if ($2 > 5 * calm) slow = 1
    }
    END { exit slow }' "$scratch/figures" && echo "within five times" || { echo "MORE than five times"; failed=1; }
done
exit "${failed:-0}"
