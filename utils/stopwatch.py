"""Stopwatches on the host's clock that wait for the GPU at both ends.

They time what a loop feels: launches, waits and the host's own work. :func:`utils.timing.measure`
runs on one CPU thread, as ``Timer`` does; these leave the number of threads as it is.

Records keep a hash of what these functions say, docstrings aside. That is why they have no type
hints: adding one would make those records stale.
"""

import statistics
import time

import torch


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
