"""What does a training step wait for? Every microsecond of a profile gets one owner::

    diagnosis = diagnose(load("trace.json.gz"))
    print(diagnosis)  # Python: the GPU waits 81% of a step of 650 µs for the host, …

For a trace of your own: ``python -m utils.bounds trace.json``. Chapter 6.2 explains the method; the
appendix on the classifier's trials plants bottlenecks and shows where it fails. The profile is best
taken with ``record_shapes=True``, of a few steps that a schedule or ranges called ``"step"`` mark.
"""

from utils.bounds.evidence import BOUNDS, MAJORITY, OWNERS, Evidence, examine
from utils.bounds.text import report
from utils.bounds.verdict import Diagnosis, diagnose, next_step, warnings_about
from utils.stretches import spelled

__all__ = [
    "BOUNDS",
    "MAJORITY",
    "OWNERS",
    "Diagnosis",
    "Evidence",
    "diagnose",
    "examine",
    "next_step",
    "report",
    "spelled",
    "warnings_about",
]
