"""Adds up junit files, names what failed and what was skipped, and ends with the counts."""

import sys
import xml.etree.ElementTree as ET

counts = {"passed": 0, "failed": 0, "skipped": 0}
for name in sys.argv[1:]:
    try:
        root = ET.parse(name).getroot()
    except (OSError, ET.ParseError):
        counts["failed"] += 1
        print("NO RESULT", name)
        continue
    # A test's clean-up that fails is a second entry under the same name: the worse one counts.
    outcome = {}
    for case in root.iter("testcase"):
        test = "%s::%s" % (case.get("classname").split(".tests.")[-1], case.get("name"))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome[test] = ("failed", "")
        elif skipped is not None:
            outcome.setdefault(test, ("skipped", skipped.get("message") or ""))
        else:
            outcome.setdefault(test, ("passed", ""))
    for test, (kind, why) in sorted(outcome.items()):
        counts[kind] += 1
        if kind != "passed":
            print(kind.upper(), test, why)
print("PASSED %(passed)d FAILED %(failed)d SKIPPED %(skipped)d" % counts)
sys.exit(counts["failed"] > 0 or counts["passed"] == 0)
