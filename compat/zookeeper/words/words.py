"""What a server answers to the four-letter words and the AdminServer's commands, as shapes: numbers, addresses, ids
and dates masked, the environment's and the metrics' values left out.

    python words.py HOST:PORT HTTP-PORT
"""

import json
import re
import socket
import sys
import urllib.request

from kazoo.client import KazooClient

server, http = sys.argv[1:3]
host, port = server.split(":")

# What monitoring tools read of mntr; the rest of its names is the server's own.
MONITORED = """version server_state avg_latency max_latency min_latency packets_received packets_sent num_alive_connections
outstanding_requests znode_count watch_count ephemerals_count approximate_data_size open_file_descriptor_count
max_file_descriptor_count uptime global_sessions local_sessions connection_drop_probability last_client_response_size
max_client_response_size min_client_response_size outstanding_tls_handshake""".split()


def ask(word):
    with socket.create_connection((host, int(port)), 60) as s:
        s.sendall(word)
        out = b""
        while data := s.recv(65536):
            out += data
        return out.decode()


def masked(text):
    text = re.sub(r"(Zookeeper version: ).*", r"\1X, built on D", text)
    text = re.sub(r"expire at .*:", "expire at D:", text)
    text = re.sub(r"0x[0-9a-f]+", "0xH", text)
    text = re.sub(r"((?:data|dataLog)Dir=).*", r"\1P", text)
    text = re.sub(r"\[[0-9a-f]\]\(queued", "[N](queued", text)
    text = re.sub(r"-?\d+(\.\d+)?(E-?\d+)?", "N", text)
    return text


def names(text, separator):
    return "\n".join(line.split(separator)[0] + separator for line in text.splitlines())


client = KazooClient(hosts=server, timeout=30)
client.start(90)
client.create("/e", b"x", ephemeral=True)
client.exists("/w", watch=lambda event: None)
for word in "ruok isro srvr stat conf envi cons dump wchs wchc wchp mntr dirs gtmk srst crst hash".split():
    answer = ask(word.encode())
    if word == "envi":
        answer = names(answer, "=")
    elif word == "mntr":
        found = {line.split("\t")[0].removeprefix("zk_") for line in answer.splitlines()}
        answer = "\n".join("zk_%s%s" % (name, "" if name in found else " IS MISSING") for name in MONITORED)
    elif word == "hash":
        answer = "answers" if re.fullmatch(r"([0-9a-f]+: \d+\n)*\n?", answer) else answer
    elif word in ("cons", "stat"):
        # The connections in any order; the word's own is one of them.
        lines = masked(answer).splitlines()
        answer = "\n".join(sorted(l for l in lines if l.startswith(" /")) + [l for l in lines if not l.startswith(" /")])
    elif word == "dump":
        # How many buckets there are is chance.
        answer = "\n".join(sorted(set(masked(answer).splitlines())))
    print("== %s\n%s" % (word, masked(answer)))
print("== unknown\n%r" % ask(b"abcd"))


def shape(value):
    if isinstance(value, dict):
        keys = sorted(value)
        if keys and all(re.fullmatch(r"(0x[0-9a-f]+|/.*|\d+)", key) for key in keys):
            return {"*": shape(value[keys[0]])}
        return {key: shape(value[key]) for key in keys}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "null" if value is None else type(value).__name__


ANY = {"environment", "system_properties", "monitor"}  # whose keys are the server's own
for command in """configuration connections dirs dump environment get_trace_mask initial_configuration is_read_only
last_snapshot leader monitor observers ruok server_stats stats voting_view watch_summary watches watches_by_path zabstate
connection_stat_reset stat_reset nonsense""".split():
    try:
        with urllib.request.urlopen("http://127.0.0.1:%s/commands/%s" % (http, command), timeout=60) as answer:
            value = json.load(answer)
            status = answer.status
    except urllib.error.HTTPError as error:
        value, status = {}, error.code
    told = {"command": value.get("command"), "error": value.get("error")} if command in ANY else shape(value)
    print("== /commands/%s %s\n%s" % (command, status, json.dumps(told, indent=1, sort_keys=True)))
client.stop()
