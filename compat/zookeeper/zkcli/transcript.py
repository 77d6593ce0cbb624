"""zkCli.sh's output made comparable: what differs between any two runs is masked.

Standard input: what the client printed, with a `stat /===N` after the Nth command, whose answer parts the
commands. Times, session ids, addresses and the JVM's own notes are masked; zxids become ranks, since their
order counts. Watch events are printed by another thread whenever it comes to it, so they stand at the end, in
the order in which they came.
"""

import re
import sys

commands = [line.rstrip("\n") for line in open(sys.argv[1]) if line.strip() and not line.startswith("#")]
output = sys.stdin.read()

ZXID = r"((?:cZxid|mZxid|pZxid) = 0x)([0-9a-f]+)"
EVENT_ZXID = r"(zxid: )(-?\d+)"
known = {int(z, 16) for _, z in re.findall(ZXID, output)} | {int(z) for _, z in re.findall(EVENT_ZXID, output)}
rank = {zxid: "Z%d" % n for n, zxid in enumerate(sorted(known))}
output = re.sub(ZXID, lambda m: m[1] + rank[int(m[2], 16)], output)
output = re.sub(EVENT_ZXID, lambda m: m[1] + rank[int(m[2])], output)
output = re.sub(r"([cm]time = ).*", r"\1TIME", output)
output = re.sub(r"(ephemeralOwner = 0x)[1-9a-f][0-9a-f]*", r"\1SESSION", output)
output = re.sub(r"version=[0-9a-f]+", "version=N", output)
output = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", output)
# ZooKeeper CLI version: the client's own.
output = re.sub(r"(ZooKeeper CLI version: ).*", r"\1X", output)

parts, events = [[]], []
for line in output.splitlines():
    marker = re.search(r"Node does not exist: /===(\d+)", line)
    if marker:
        parts.append([])
    elif line.startswith("WatchedEvent"):
        events.append(line)
    elif line.strip() and line != "WATCHER::" and not re.match(r"Connecting to|Welcome to|JLine support|\[zk: ", line):
        parts[-1].append(line.rstrip())
for command, lines in zip(commands, parts):
    print("> " + command)
    for line in lines:
        if command.startswith("getEphemerals") and line.startswith("["):
            # ZooKeeper lists them in the order of a hash table.
            line = "[%s]" % ", ".join(sorted(line[1:-1].split(", ")))
        print("  " + line)
if len(parts) < len(commands):
    print("the client ended after %d of %d commands" % (len(parts), len(commands)))
print("events:")
for event in events:
    print("  " + event)
