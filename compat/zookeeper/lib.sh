# Sourced by every suite here: where things are, what is fetched, which server is run.
#
# The server under test is a command that runs ONE server in the foreground and ends on SIGTERM
# (ZK_SERVER_CMD). What the command is told, all by environment:
#
#   SRV_PORT      client port on 127.0.0.1 (empty: none)
#   SRV_DIR       a private directory; what is in it survives a restart
#   SRV_ID        its number (1..); SRV_PEERS the `server.N=host:quorum:election` lines (empty: alone)
#   SRV_CFG       further zoo.cfg lines that a test asks for
#   SRV_JVM       -D properties that a test asks for
#   SRV_TLS_PORT  client port with TLS (empty: none), SRV_TLS_PEM key and certificates, SRV_TLS_CA
#   SRV_JAAS      a JAAS file with DIGEST-MD5 users (empty: none)
#   SRV_HTTP      port of the AdminServer's commands (empty: none)
#   SRV_TICK      tickTime in ms; the shortest session is two ticks
#
# servers/zookeeper.sh and servers/lockkeeper.sh are the two there are.
set -u
COMPAT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$COMPAT/../.." && pwd)
TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
COMPAT_WORK=${COMPAT_WORK:-$TARGET_DIR/zookeeper}
mkdir -p "$COMPAT_WORK"
SERVER=${SERVER:-lockkeeper}
export COMPAT ROOT TARGET_DIR COMPAT_WORK SERVER

die() { printf '%s\n' "cannot run: $*" >&2; exit 2; }

# need COMMAND PACKAGE: a tool of the system, installed if that can be done without asking.
need() {
  command -v "$1" >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2"; } >&2
  fi
  command -v "$1" >/dev/null || die "$1 is missing (Debian: apt-get install $2)"
}

# jars [LIST]: the jars of a list (jars.txt), each fetched once and checked against its sum; sets JARS.
jars() {
  need curl curl; need java default-jdk-headless
  local list=${1:-$COMPAT/jars.txt} sum path file
  JARS=$COMPAT_WORK/jars-$(sha256sum < "$list" | cut -c1-12)
  [ -e "$JARS/.complete" ] && return
  mkdir -p "$JARS"
  while read -r sum path; do
    case $sum in '#'*|'') continue;; esac
    file=$JARS/$(basename "$path")
    curl -sSf --retry 5 --retry-all-errors -o "$file" "${MAVEN_CENTRAL:-https://repo.maven.apache.org/maven2}/$path" \
      || die "$path could not be fetched from Maven Central"
    echo "$sum  $file" | sha256sum --check --quiet || die "$path is not the file that $list names"
  done < "$list"
  touch "$JARS/.complete"
}

# venv NAME PACKAGES…: a Python environment made once; prints its path.
venv() {
  local dir=$COMPAT_WORK/venv-$1; shift
  need python3 python3-venv
  if [ ! -e "$dir/.complete" ]; then
    { python3 -m venv "$dir" && "$dir/bin/pip" install -q "$@" && touch "$dir/.complete"; } >&2 \
      || die "the Python packages $* could not be installed"
  fi
  echo "$dir"
}

# probe [FEATURES]: builds the program that measures (probe/); sets PROBE.
probe() {
  need cargo cargo
  (cd "$COMPAT/probe" && cargo build -q --locked --release ${1:+--features "$1"} --target-dir "$COMPAT_WORK/target-probe") \
    || die "the probe does not build"
  PROBE=$COMPAT_WORK/target-probe/release/lockkeeper-zookeeper-probe
}

# The server under test: sets ZK_SERVER_CMD, and makes ready what it starts.
server_command() {
  [ -n "${ZK_SERVER_CMD:-}" ] && return
  case $SERVER in
    zookeeper) jars; export JARS;;
    lockkeeper)
      if [ -z "${LOCKKEEPER_BIN:-}" ]; then
        (cd "$ROOT" && cargo build --locked ${LOCKKEEPER_PROFILE:+--profile "$LOCKKEEPER_PROFILE"} -p lockkeeper-cli >&2) \
          || die "lockkeeper does not build"
        LOCKKEEPER_BIN=$TARGET_DIR/${LOCKKEEPER_PROFILE:-debug}/lockkeeper
      fi
      export LOCKKEEPER_BIN;;
    *) die "SERVER is zookeeper or lockkeeper, not '$SERVER'";;
  esac
  export ZK_SERVER_CMD="$COMPAT/servers/$SERVER.sh"
}

# A server for one suite: start_server NAME [PROPERTIES]; sets PORT. Ended by stop_servers, at the latest at exit.
SERVER_PIDS=
# A port that nobody has, and that the system gives to no connection before the server has it: below those
# that Linux takes for outgoing ones (32768 and up).
free_port() {
  python3 -c '
import random, socket
for port in random.sample(range(15000, 32000), 1000):
    try:
        socket.socket().bind(("127.0.0.1", port))
    except OSError:
        continue
    print(port)
    break
'
}
four_letters() { # PORT WORD: what the server answers
  python3 - "$1" "$2" <<'P'
import socket, sys
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2) as s:
        s.settimeout(5)
        s.sendall(sys.argv[2].encode())
        while data := s.recv(65536):
            sys.stdout.write(data.decode())
except OSError:
    sys.exit(1)
P
}
has_session() { # PORT: whether a session can be had, for servers that don't know srvr
  python3 - "$1" <<'P'
import socket, struct, sys
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2) as s:
        s.settimeout(5)
        s.sendall(struct.pack(">iiqiqi", 44, 0, 0, 4000, 0, 16) + bytes(16))
        sys.exit(struct.unpack(">q", s.recv(64)[12:20])[0] == 0)
except (OSError, struct.error):
    sys.exit(1)
P
}
await_serving() { # PORT DIRECTORY PID
  local i
  for i in $(seq 450); do
    if [ -n "${COMPAT_READY_BY_SESSION:-}" ]; then has_session "$1" && return
    else four_letters "$1" srvr 2>/dev/null | grep -q Mode: && return; fi
    kill -0 "$3" 2>/dev/null || die "the server ended: $2/log"
    sleep 0.2
  done
  die "the server is not ready: $2/log"
}
start_server() {
  local dir
  PORT=$(free_port); dir=$(mktemp -d "$COMPAT_WORK/$1-XXXXXX")
  SRV_PORT=$PORT SRV_DIR=$dir SRV_ID= SRV_PEERS= SRV_CFG= SRV_TICK=${SRV_TICK:-2000} SRV_JVM="-Dzookeeper.extendedTypesEnabled=true
    -Dzookeeper.DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU= ${2:-}" \
    sh -c "exec $ZK_SERVER_CMD" > "$dir/log" 2>&1 &
  SERVER_PIDS="$SERVER_PIDS $!:$dir"
  await_serving "$PORT" "$dir" $!
}
# Three of them; sets PORTS (with commas).
start_cluster() {
  local i peers='' ports=() dirs=()
  for i in 1 2 3; do
    ports+=("$(free_port)")
    peers+="server.$i=127.0.0.1:$(free_port):$(free_port)"$'\n'
  done
  for i in 1 2 3; do
    dirs+=("$(mktemp -d "$COMPAT_WORK/$1-XXXXXX")")
    SRV_PORT=${ports[i - 1]} SRV_DIR=${dirs[i - 1]} SRV_ID=$i SRV_PEERS=$peers SRV_CFG= SRV_TICK=${SRV_TICK:-2000} \
      SRV_JVM="-Dzookeeper.extendedTypesEnabled=true ${2:-}" sh -c "exec $ZK_SERVER_CMD" > "${dirs[i - 1]}/log" 2>&1 &
    SERVER_PIDS="$SERVER_PIDS $!:${dirs[i - 1]}"
  done
  for i in 1 2 3; do
    await_serving "${ports[i - 1]}" "${dirs[i - 1]}" "$(cut -d' ' -f$((i + 1)) <<<"$SERVER_PIDS" | cut -d: -f1)"
  done
  PORTS=127.0.0.1:${ports[0]},127.0.0.1:${ports[1]},127.0.0.1:${ports[2]}
}
stop_servers() {
  local each
  for each in $SERVER_PIDS; do kill "${each%%:*}" 2>/dev/null && wait "${each%%:*}" 2>/dev/null; done
  for each in $SERVER_PIDS; do [ -n "${COMPAT_KEEP:-}" ] || rm -rf "${each#*:}"; done
  SERVER_PIDS=
}
trap stop_servers EXIT
