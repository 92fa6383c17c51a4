"""What the profiler saw: traces saved without private names, read back, and drawn::

    trace = load("trace.json.gz")
    fig = timeline(trace, "Who waits?", begin=step.begin, end=step.end)

``torch.profiler`` writes Chrome traces: one JSON event for every operator, CUDA call, kernel and
copy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from utils.profile.files import load, save
from utils.profile.model import Span, Trace, TraceError, Work, busy, gaps, nested

if TYPE_CHECKING:
    from utils.profile.drawing import COLORS, call_kind, short_name, timeline

__all__ = ["Span", "Trace", "TraceError", "Work", "busy", "gaps", "load", "nested", "save"]
__all__ += ["COLORS", "call_kind", "short_name", "timeline"]


def __getattr__(name: str) -> Any:
    """Import what draws where it is asked for: matplotlib takes a second."""
    if name in __all__:
        return getattr(import_module("utils.profile.drawing"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
