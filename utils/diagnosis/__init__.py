"""Find out why torch cannot use a GPU, and what to do about it.

``python -m utils.diagnosis`` prints the diagnosis of the machine at hand, with ``--json`` for a
program to read. Three parties must agree: the driver, the wheel and the card. ``facts`` asks each
of them; ``compatibility`` holds the published rules of who runs whom; ``rules`` only reasons, so
that every cause can be tried without the machine that has it. None needs a torch that works.
"""

from utils.diagnosis.compatibility import OLDEST_DRIVER, runs_on, visible
from utils.diagnosis.facts import HEALTHY, Facts, gather
from utils.diagnosis.rules import Finding, what_is_wrong

__all__ = [
    "HEALTHY",
    "OLDEST_DRIVER",
    "Facts",
    "Finding",
    "gather",
    "runs_on",
    "visible",
    "what_is_wrong",
]
