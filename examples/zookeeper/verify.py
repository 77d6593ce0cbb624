"""Forces what a deduplication lock is for, and looks at it with an operator's tools (zkCli.sh, nc, kill):

1. a worker that is stopped (kill -STOP) for longer than its session loses the lock, the next one is promoted,
   and the first one learns of it when it runs again;
2. a release wakes one waiter, not all of them;
3. another session that syncs first reads what the lock's node was made with.

    python verify.py HOST:PORT NAME COMMAND…      COMMAND… is a worker, before its arguments

ZKCLI is the command for zkCli.sh.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading

server, name, worker_command = sys.argv[1], sys.argv[2], sys.argv[3:]
WAIT_S = 120


class Worker:
    all = []

    def __init__(self, key, session_ms):
        Worker.all.append(self)
        self.process = subprocess.Popen(
            worker_command + [server, key, "payload-of-%s" % key, str(session_ms)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = []
        self.news = threading.Condition()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            with self.news:
                self.said.append(line.strip())
                self.news.notify_all()

    def heard(self, word):
        return next((line for line in self.said if line.startswith(word)), None)

    def await_word(self, word):
        with self.news:
            assert self.news.wait_for(lambda: self.heard(word), WAIT_S), "no '%s' but %s" % (word, self.said)
            return self.heard(word)

    def release(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.wait(WAIT_S) == 0, "the worker ended with %s" % self.process.returncode

    def end(self):
        self.process.kill()
        self.process.wait()


def zkcli(*command):
    done = subprocess.run(shlex.split(os.environ["ZKCLI"]) + ["-server", server, *command], capture_output=True, text=True)
    assert done.returncode == 0, "%s: %s" % (command, done.stdout + done.stderr)
    return done.stdout + done.stderr


def received():
    host, port = server.split(":")
    # The real server leaves the newline of "echo stat" unread when it closes, and the reset that follows from it may
    # overtake its answer (57 of 1,500 on a busy machine). Ours has to answer either.
    ask = "printf stat" if os.environ.get("SERVER") == "zookeeper" else "echo stat"
    out = subprocess.run(ask + ' | nc %s %s | grep "Received"' % (host, port), shell=True, capture_output=True, text=True)
    return int(re.search(r"Received: (\d+)", out.stdout)[1])


def expiry_passes_the_lock_on():
    key = "req-42-" + name
    # A short session, so that the stop may be short; longer than a machine stands still whose disk stalls.
    first = Worker(key, 10000)
    held = first.await_word("executing").split()[1]
    second = Worker(key, 40000)
    second.await_word("waiting")
    os.kill(first.process.pid, signal.SIGSTOP)
    promoted = second.await_word("executing").split()[1]
    listing = zkcli("ls", "/dedup/" + key)
    assert held.rsplit("/", 1)[1] not in listing, listing
    assert promoted.rsplit("/", 1)[1] in listing, listing
    os.kill(first.process.pid, signal.SIGCONT)
    first.await_word("aborted")
    first.end()
    second.release()


def a_release_wakes_one():
    # On a slow machine so many pings come in between that nothing can be told: then once more.
    if min(requests_for_a_release("req-43-" + name)) > 8:
        grown = requests_for_a_release("req-43-again-" + name)
        assert min(grown) <= 8, "%s requests for one release" % grown


def requests_for_a_release(key):
    workers = [Worker(key, 40000)]
    workers[0].await_word("executing")
    for _ in range(6):
        workers.append(Worker(key, 40000))
        workers[-1].await_word("waiting")
    grown = []
    for index in range(3):
        before = received()
        workers[index].release()
        workers[index + 1].await_word("executing")
        grown.append(received() - before)
        assert not any(worker.heard("executing") for worker in workers[index + 2:]), "more than one was woken"
    # The release (delete, close), the look at the counter itself, and what one woken client asks: its listing, and
    # with kazoo two more reads of its watch. Six woken ones would ask for twelve more. Pings come in now and then.
    print("    received %s requests for one release with six, five, four waiting" % grown)
    for worker in workers[3:]:
        worker.await_word("executing")
        worker.release()
    return grown


def another_session_reads_it():
    key = "req-44-" + name
    holder = Worker(key, 40000)
    node = holder.await_word("executing").split()[1]
    zkcli("sync", "/dedup/" + key)
    assert "payload-of-" + key in zkcli("get", node)
    holder.release()


failed = 0
for check in (expiry_passes_the_lock_on, a_release_wakes_one, another_session_reads_it):
    what = "%s: %s" % (name, check.__name__.replace("_", " "))
    try:
        check()
        print("ok     ", what)
    except AssertionError as error:
        failed += 1
        print("FAILED ", what + ":", error)
    for worker in Worker.all:
        worker.end()
print("PASSED %d FAILED %d SKIPPED 0" % (3 - failed, failed))
sys.stdout.flush()
os._exit(failed > 0)
