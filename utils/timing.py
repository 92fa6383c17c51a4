"""Medians with spread, on ``torch.utils.benchmark``.

``Timer`` runs a statement in batches, waits for the GPU before it reads the clock, and repeats
until the batches add up to ``min_run_time``. Here the median is reported, since a median ignores
the few batches that another process disturbed, and the interquartile range says how steady it was.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

# The benchmark module loads torch's C++ builder, unused here, which warns where it finds a CUDA
# compiler without a GPU.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils.benchmark import Timer  # noqa: E402


@dataclass(frozen=True)
class Timing:
    """One measured duration.

    Attributes
    ----------
    median, iqr : float
        Median and interquartile range over the batches, in seconds per call.
    batches : int
        How many batches were timed.
    """

    median: float
    iqr: float
    batches: int

    def __str__(self) -> str:
        return f"{format_seconds(self.median)} ± {format_seconds(self.iqr / 2)}"


def measure(function: Callable[[], object], *, min_run_time: float = 0.2) -> Timing:
    """Time ``function()`` on whatever device it works on.

    The function is called a few times first, so that context creation, library loading and
    algorithm choice stay out of the result.

    Parameters
    ----------
    function : callable
        Called without arguments; its GPU work is waited for.
    min_run_time : float
        Seconds to spend measuring, at least.

    Raises
    ------
    ValueError
        If ``min_run_time`` is not positive.
    """
    if min_run_time <= 0:
        raise ValueError(f"min_run_time is {min_run_time}: give a positive number of seconds")
    for _ in range(3):
        function()
    timer = Timer("function()", globals={"function": function})
    found = timer.blocked_autorange(min_run_time=min_run_time)
    return Timing(found.median, found.iqr, len(found.times))


def format_seconds(seconds: float) -> str:
    """Return ``seconds`` with three significant digits and a readable unit.

    >>> format_seconds(0.000_0123)
    '12.3 µs'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= scale * 0.9995 or unit == "ns":
            value = seconds / scale
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable")
