"""Medians with spread, and stopwatches on the host's clock that wait for the GPU at both ends.

:func:`measure` stands on ``torch.utils.benchmark.Timer``, which runs a statement in batches, waits
for the GPU before it reads the clock, and repeats until the batches add up to ``min_run_time``.
Here the median is reported, since a median ignores the few batches that another process disturbed,
and the interquartile range says how steady it was. ``Timer`` uses one CPU thread.

:func:`wall`, :func:`pace` and :func:`in_turn` time what a loop feels: launches, waits and the
host's own work, on as many threads as there are.

:func:`rounds_of` and :func:`ratio` say whether one thing is faster than another, and by how much.
"""

import logging
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

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


# --- stopwatches ---------------------------------------------------------------------------------
#
# Records keep a hash of what these functions say, docstrings aside. That is why they have no type
# hints: adding one would make those records stale.


def wall(work, repeats=7):
    """Return the median seconds of ``work()`` from an idle GPU to an idle GPU.

    Parameters
    ----------
    work : callable
        Called without arguments; two more calls, the first, warm up.
    repeats : int
        How many calls count.

    Raises
    ------
    statistics.StatisticsError
        If ``repeats`` is 0 or less.
    """
    seconds = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])  # the first two warm up


def pace(step, steps=20):
    """Return the milliseconds per step of steps in a row; the GPU is waited for at both ends only.

    Parameters
    ----------
    step : callable
        Called without arguments; nothing warms up.
    steps : int
        How many calls are timed.

    Raises
    ------
    ZeroDivisionError
        If ``steps`` is 0.
    """
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / steps


def in_turn(works, rounds=11, calls=10):
    """Return the quartiles of the milliseconds that one call of each work takes, by turns.

    All works take their turn in each round, so that a slow moment of the machine hits them alike.
    One more round, the first, warms up.

    Parameters
    ----------
    works : dict of callable
        By name; called without arguments.
    rounds : int
        How many rounds count; quartiles need two at least.
    calls : int
        How many calls make a turn; the GPU is waited for at its ends.

    Returns
    -------
    dict of list of float
        Three quartiles for each name, in ms with four significant digits.

    Raises
    ------
    statistics.StatisticsError
        If there are too few rounds for quartiles.
    """
    times = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                work()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start) / calls)
    return {
        name: [digits(q) for q in statistics.quantiles(ms[1:], n=4, method="inclusive")]
        for name, ms in times.items()
    }


def spread(samples):
    """Return median, least and most of some samples, with four significant digits.

    >>> spread([3.0, 1.00004, 2.0])
    [2.0, 1.0, 3.0]
    """
    return [float(f"{of(samples):.4g}") for of in (statistics.median, min, max)]


def digits(x):
    """Return a number with four significant digits, for a record: further ones are noise.

    >>> digits(123456.7)
    123500.0
    """
    return float(f"{x:.4g}")


# --- what is faster than what --------------------------------------------------------------------


def rounds_of(arms, rounds=100, calls=1, warmup_seconds=1.0):
    """Return the seconds that one call of each arm takes, in each of some rounds: for a record.

    In each round all arms take their turn, in an order that chance decides anew, so that no arm is
    always the one after a wait, or after that other arm. Before the rounds that count, groups of
    rounds warm up until the medians of two successive groups agree within 2%, for ten groups at
    most. How many rounds count is fixed here, before the first is seen. What :func:`ratio` makes of
    them is worked out where the record is read.

    Parameters
    ----------
    arms : dict of callable
        By name, two at least; called without arguments, their GPU work is waited for at both ends.
    rounds : int
        How many rounds count; :func:`ratio` needs eight.
    calls : int
        How many calls make a turn.
    warmup_seconds : float
        How long a group that warms up lasts, at least.

    Returns
    -------
    dict of list of float
        Seconds of a call in each round, by name, with four significant digits.

    Raises
    ------
    ValueError
        If there are fewer than two arms, eight rounds or one call, or if the clock shows no time.
    """
    if len(arms) < 2 or rounds < 8 or calls < 1:
        raise ValueError("a comparison takes two arms, eight rounds and one call, or more of each")
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else lambda: None

    def group(least, seconds):
        taken, end = {name: [] for name in arms}, time.perf_counter() + seconds
        while len(min(taken.values(), key=len)) < least or time.perf_counter() < end:
            for name in random.sample(list(arms), len(arms)):
                wait()
                start = time.perf_counter()
                for _ in range(calls):
                    arms[name]()
                wait()
                taken[name].append((time.perf_counter() - start) / calls)
        return taken

    before = {}
    for _ in range(10):
        now = {name: statistics.median(s) for name, s in group(3, warmup_seconds).items()}
        if before and all(abs(now[name] - before[name]) <= 0.02 * now[name] for name in arms):
            break
        before = now
    taken = group(rounds, 0)
    if min(map(min, taken.values())) <= 0:
        raise ValueError("an arm takes less time than the clock can show: raise calls")
    return {name: [digits(s) for s in seconds] for name, seconds in taken.items()}


def ratio(a, b, draws=2000):
    """Median of b over median of a, and both ends of its 95% interval; they share their rounds.

    The interval is a bootstrap: rounds are drawn again and again, each whole, a with its b. So what
    slowed the machine for a while slowed both, and mostly cancels. Drawn apart, it would not.
    """
    n, times = len(a), torch.tensor([b, a], dtype=torch.float64, device="cpu")
    assert n >= 8 and times.log().isfinite().all(), "8 rounds or more, each above 0 s"
    drawn = torch.randint(n, (draws, n), generator=torch.Generator().manual_seed(0), device="cpu")
    found = torch.div(*times[:, drawn].quantile(0.5, dim=2))
    return torch.div(*times.quantile(0.5, dim=1)), *(found.quantile(q, 0) for q in (0.025, 0.975))


def beside(a, b):
    """Return what :func:`ratio` finds, in words.

    >>> beside([1.0] * 10, [1.02] * 10)
    '1.020 (1.020 to 1.020)'
    >>> beside([1.0, 1.1] * 5, [1.1, 1.0] * 5)
    'no difference seen (0.909 to 1.100), 21.0% would be'
    """
    x, low, high = ratio(a, b)
    if low <= 1 <= high:
        return f"no difference seen ({low:.3f} to {high:.3f}), {high / low - 1:.1%} would be"
    return f"{x:.3f} ({low:.3f} to {high:.3f})"


def six_pairs(run_a, run_b):
    """Return six pairs of seconds: each run alone, in an order that alternates.

    For what the state of a process can change: what was compiled before, cuDNN's plans, the
    allocator, where the process lies in memory. ``spread([b / a for a, b in pairs])`` gives the
    ratio and its interval, from the least to the greatest of the six: without a difference all six
    lie on one side of 1 in 2 of 64 cases.

    Parameters
    ----------
    run_a, run_b : callable
        Each starts a fresh process, waits for its end and returns the seconds that it measured.

    Returns
    -------
    list of list of float
        Six times the seconds of a and of b, with four significant digits.
    """
    pairs = []
    for first in (0, 1) * 3:
        pair = [0.0, 0.0]
        for arm in (first, 1 - first):
            pair[arm] = digits((run_a, run_b)[arm]())
        pairs.append(pair)
    return pairs
