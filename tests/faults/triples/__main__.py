"""Validates the ports with three faults each, and prints how many of their faults one run finds, places and names.

A fault is named if one of the first findings, as many as there are faults and one more, says its cause, and its line is
found if a finding has it.
"""

import re
import sys

import detrand
from tests.faults.triples import triples

if __name__ == "__main__":
    named = lines = confirmed = extra = count = 0
    for triple in triples():
        if sys.argv[1:] and triple.name not in sys.argv[1:]:
            continue
        report = detrand.validate(triple.make(True))
        texts = [str(finding) for finding in report.findings]
        found = [[text for text in texts if re.search(cause, text, re.IGNORECASE)] for cause in triple.causes]
        placed = [any(re.search(rf"\.py:{line}\b", text) for text in texts) for line in triple.lines]
        named += sum(map(bool, found))
        lines += sum(placed)
        confirmed += sum(bool(finding.confirmed) for finding in report.findings)
        extra += max(0, len(texts) - 3)
        count += 3
        missed = [cause for cause, texts_of in zip(triple.causes, found, strict=True) if not texts_of]
        print(
            f"{triple.name}: {sum(map(bool, found))} of 3 named, {sum(placed)} lines, {len(texts)} findings", flush=True
        )
        for cause in missed:
            print(f"    missed: {cause}")
        for finding in report.findings:
            print(f"    {finding.title}")
    print(f"{named} of {count} faults named, {lines} at their lines; {extra} findings more than faults")
