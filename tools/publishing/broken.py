"""What a run of the tests says broke, as Markdown: python tools/publishing/broken.py report.xml

The report is what ``pytest --junitxml`` writes. Failures are listed by file; a notebook's cells are
counted, and the first is quoted, since those below it mostly fail because of it.
"""

import sys
from collections import defaultdict
from importlib.metadata import version
from xml.etree import ElementTree


def broken(report: str) -> str:
    """Return the failures of a report, by file.

    Parameters
    ----------
    report : str
        The XML.
    """
    found = defaultdict(list)
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    for case in cases:
        for fault in (*case.findall("failure"), *case.findall("error")):
            text = fault.get("message") or fault.text or "it says nothing"
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            found[case.get("classname")].append((case.get("name"), lines[0][:300]))
    count = sum(map(len, found.values()))
    lines = [f"{count} of {len(cases)} tests failed under torch {version('torch')}."]
    for file, faults in sorted(found.items()):
        (name, said), more = faults[0], len(faults) - 1
        lines.append(f"- **{file}**, {name}: `{said}`" + (f" and {more} more" if more else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(broken(file.read()), end="")
