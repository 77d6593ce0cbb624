"""Counts the output of a Rust test program on the standard input; names what failed or was skipped."""

import re
import sys

text = sys.stdin.read()
# The stand-in for testcontainers panics with SKIP where a test wants a server that nobody has any more.
skips = dict(re.findall(r"^---- (\S+) stdout ----(?:(?!^----).)*?SKIP: ([^\n]*)", text, re.M | re.S))
counts = {"passed": 0, "failed": 0, "skipped": 0}
for name, result in re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (?:.*?)(ok|FAILED|ignored)\b", text, re.M):
    why = "ignored by the crate" if result == "ignored" else skips.get(name)
    if why:
        kind = "skipped"
    else:
        kind = "passed" if result == "ok" else "failed"
    counts[kind] += 1
    if kind != "passed":
        print(kind.upper(), name, why or "")
if not any(counts.values()):
    counts["failed"] = 1
    print("NO RESULT")
print("PASSED %(passed)d FAILED %(failed)d SKIPPED %(skipped)d" % counts)
sys.exit(counts["failed"] > 0 or counts["passed"] == 0)
