"""One worker of many that were given the same request: only the one with the lowest node under /dedup/KEY executes
it, the others wait behind it. With kazoo; DedupWorker.java is the same with Apache Curator. In production use
kazoo's Lock; this shows what it does.

    python dedup_worker.py HOST:PORT[,HOST:PORT…] KEY PAYLOAD-HASH [SESSION-MS]

Says `waiting`, `executing NODE`, `suspended`, `aborted`; a line on the standard input releases the lock.
"""

import sys
import threading

from kazoo.client import KazooClient

hosts, idempotency_key, payload_hash = sys.argv[1:4]
timeout = float(sys.argv[4]) / 1000 if len(sys.argv) > 4 else 12.0

zk = KazooClient(hosts=hosts, timeout=timeout)
base_path = f"/dedup/{idempotency_key}"
aborted = threading.Event()


def say(line):
    print(line, flush=True)


def abort_in_flight_operation(key):
    if not aborted.is_set():
        aborted.set()
        say("aborted")


@zk.add_listener
def session_watcher(state):
    # kazoo calls this on its connection's thread: nothing here may wait for an answer.
    if state == "LOST":
        abort_in_flight_operation(idempotency_key)
    elif state == "SUSPENDED":
        say("suspended")


def recheck_ownership():
    children = sorted(zk.get_children(base_path))
    my_node = my_path.rsplit("/", 1)[-1]
    if children[0] == my_node:
        say(f"executing {my_path}")
    else:
        watch_predecessor(children, my_node)


def watch_predecessor(children, my_node):
    my_index = children.index(my_node)
    predecessor = children[my_index - 1]
    say("waiting")

    @zk.DataWatch(f"{base_path}/{predecessor}")
    def on_predecessor_change(data, stat, event):
        if stat is None:
            # Gone: by the event, or already before the watch was set.
            recheck_ownership()
            return False


zk.start()
zk.ensure_path(base_path)
my_path = zk.create(f"{base_path}/lock-", value=payload_hash.encode("utf-8"), ephemeral=True, sequence=True)
recheck_ownership()
sys.stdin.readline()
if not aborted.is_set():
    zk.delete(my_path)
zk.stop()
