"""Say what driver, wheel and GPU report, and what keeps torch from using a GPU.

The last line says what to do next. With --json, one object instead:

  facts     what the operating system, the driver, the wheel and torch say
  findings  a list of cause, problem, remedy and step, the one to repair first at its head
  verdict   "works", "no-gpu" or "repair"
  next      what to do next
  status    the exit status

Exit status: 0 if a GPU works or there is none, 1 if there is something to repair, 2 for an option
that does not exist.

Example:

  python -m utils.diagnosis --json > gpu.json
  python -c "import json; print(json.load(open('gpu.json'))['next'])"
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

from utils.diagnosis.facts import Facts, gather
from utils.diagnosis.rules import what_is_wrong

READ_ON = "read on with book/12_gpus.ipynb"  # where a GPU works


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, without the usage before it."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options.\n")


def report(facts: Facts) -> dict:
    """Return facts, findings, verdict, next step and exit status, as ``--json`` prints them."""
    findings = what_is_wrong(facts)
    to_repair = any(finding.cause != "no-gpu" for finding in findings)
    return {
        "facts": asdict(facts),
        "findings": [asdict(finding) for finding in findings],
        "verdict": "repair" if to_repair else "no-gpu" if findings else "works",
        "next": findings[0].step if findings else READ_ON,
        "status": int(to_repair),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print facts, findings and the next step; return 1 if there is something to repair, else 0."""
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = _Parser(
        prog="python -m utils.diagnosis",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    said = report(gather())
    if options.json:
        print(json.dumps(said, indent=2))
        return said["status"]
    for name, value in said["facts"].items():
        print(f"{name:16} {value}")
    for finding in said["findings"]:
        print(f"\nProblem: {finding['problem']}.\nRemedy:  {finding['remedy']}.")
    if not said["findings"]:
        print(f"\nNothing to repair: torch can use {len(said['facts']['torch_gpus'])} GPU(s).")
    print(f"\nNext: {said['next']}")
    return said["status"]


if __name__ == "__main__":
    sys.exit(main())
