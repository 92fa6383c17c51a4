"""Find out why torch cannot use a GPU, and what to do about it.

``python -m utils.diagnosis`` prints the diagnosis of the machine at hand, with ``--json`` for a
program to read. Three parties must agree: the driver, the wheel and the card. ``facts`` asks each
of them; ``compatibility`` holds the published rules of who runs whom; ``rules`` and ``wheel_rules``
only reason, so that every cause can be tried without the machine that has it; ``command`` prints.
Nothing here needs a torch that works.
"""

from utils.diagnosis.command import main as main
from utils.diagnosis.compatibility import OLDEST_DRIVER as OLDEST_DRIVER
from utils.diagnosis.compatibility import runs_on as runs_on
from utils.diagnosis.compatibility import visible as visible
from utils.diagnosis.facts import Facts as Facts
from utils.diagnosis.facts import gather as gather
from utils.diagnosis.facts import wheel_archs as wheel_archs
from utils.diagnosis.finding import Finding as Finding
from utils.diagnosis.rules import what_is_wrong as what_is_wrong
