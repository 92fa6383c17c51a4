"""What does a training step wait for? Every microsecond of a profile gets one owner::

    diagnosis = diagnose(load("trace.json.gz"))
    print(diagnosis)  # Python: the GPU waits 81% of a step of 650 µs for the host, …

For a trace of your own: ``python -m utils.bounds trace.json``. Chapter 6.2 explains the method; the
appendix on the classifier's trials plants bottlenecks and shows where it fails. The profile is best
taken with ``record_shapes=True``, of a few steps that a schedule or ranges called ``"step"`` mark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from utils.bounds.evidence import BOUNDS, OWNERS, Evidence, examine
from utils.bounds.owners import kind_of, label, owners, window
from utils.bounds.roofline import operations
from utils.bounds.verdict import Diagnosis, diagnose, report

if TYPE_CHECKING:
    from utils.bounds.owner_strip import INK, signature, strip

__all__ = ["BOUNDS", "OWNERS", "Diagnosis", "Evidence", "diagnose", "examine", "kind_of", "label"]
__all__ += ["operations", "owners", "report", "window"]
__all__ += ["INK", "signature", "strip"]


def __getattr__(name: str) -> Any:
    """Import what draws where it is asked for: matplotlib takes a second."""
    if name in __all__:
        return getattr(import_module("utils.bounds.owner_strip"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
