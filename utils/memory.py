"""Sizes in readable units, peaks, and what the caching allocator's snapshots say.

1 GiB is 2**30 bytes and 1 GB is 10**9: memory sizes are counted in the first, link and memory
speeds in the second, as datasheets do.
"""

import gc
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

KIB, MIB, GIB = 2**10, 2**20, 2**30


def format_bytes(count: float) -> str:
    """Return a number of bytes in binary units, with three significant digits.

    >>> format_bytes(20 * 2**20)
    '20 MiB'
    """
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= scale:
            value = count / scale
            # .3g would print 1000 to 1023 of a unit, and what rounds to 1000, as 1e+03
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def peak_bytes(function: Callable[[], object]) -> int:
    """Return the most bytes that tensors held on the current GPU while ``function()`` ran.

    What was allocated before the call counts too; memory outside of torch's allocator (the CUDA
    context, libraries' own buffers) does not.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


# No type hint: records keep a hash of its text, and a hint would make them stale.
def clean():
    """Free what the last case used: collect cycles, and empty the allocator's cache."""
    gc.collect()
    torch.cuda.empty_cache()


# --- what a snapshot and a trace of the caching allocator say ------------------------------------


STATES = {"active_allocated": "active", "active_awaiting_free": "waiting", "inactive": "free"}


def segments(snapshot: list[dict], *, stream: int | None = None) -> list[dict]:
    """Reduce what ``torch.cuda.memory_snapshot()`` returned to sizes and states.

    Parameters
    ----------
    snapshot : list of dict
        Segments as torch gives them, with addresses and stack frames.
    stream : int, optional
        Keep only the segments of this stream (a ``cuda_stream``).

    Returns
    -------
    list of dict
        In the order of addresses: ``pool`` (``"small"`` or ``"large"``), ``size`` in bytes and
        ``blocks``, a list of ``[size, state]`` that fills the segment. A state is ``"active"``,
        ``"waiting"`` (freed, but another stream may still use it) or ``"free"``.

    Raises
    ------
    ValueError
        If the blocks of a segment do not add up to it, or a state is unknown.
    """
    kept = [s for s in snapshot if stream is None or s["stream"] == stream]
    result = []
    for segment in sorted(kept, key=lambda s: s["address"]):
        unknown = {block["state"] for block in segment["blocks"]} - STATES.keys()
        if unknown:
            raise ValueError(f"unknown states of blocks: {sorted(unknown)}")
        blocks = [[block["size"], STATES[block["state"]]] for block in segment["blocks"]]
        size, total = segment["total_size"], sum(size for size, _ in blocks)
        if total != size:
            raise ValueError(f"a segment of {size} bytes has blocks of {total} bytes")
        result.append({"pool": segment["segment_type"], "size": size, "blocks": blocks})
    return result


class Life(NamedTuple):
    """One allocation in a trace: alive from event ``start`` up to, not including, ``end``."""

    start: int
    end: int
    size: int
    address: int
    frames: list[dict]


def lifetimes(trace: list[dict]) -> list[Life]:
    """Pair the allocations of a trace with their frees.

    Parameters
    ----------
    trace : list of dict
        Events in order, as in ``torch.cuda.memory._snapshot()["device_traces"][0]``.

    Returns
    -------
    list of Life
        In the order of allocation, sizes as requested. What is never freed ends at ``len(trace)``;
        frees of memory that was allocated before the trace began are left out.

    Raises
    ------
    ValueError
        If an address is allocated while it is in use: then events are missing.
    """
    lives: list[Life] = []
    alive: dict[int, int] = {}  # address -> index in lives
    for i, event in enumerate(trace):
        if event["action"] == "alloc":
            address = event["addr"]
            if address in alive:
                raise ValueError(f"event {i} allocates {address:#x}, which is in use")
            alive[address] = len(lives)
            lives.append(Life(i, len(trace), event["size"], address, event.get("frames", [])))
        elif event["action"] == "free_requested" and event["addr"] in alive:
            index = alive.pop(event["addr"])
            lives[index] = lives[index]._replace(end=i)
    return lives


def live_at_peak(lives: list[Life]) -> list[Life]:
    """Return the allocations that are alive when the most bytes are; the first such moment."""
    total = peak = 0
    moment = -1
    changes = [(life.start, life.size) for life in lives] + [
        (life.end, -life.size) for life in lives
    ]
    for when, change in sorted(changes):
        total += change
        if total > peak:
            peak, moment = total, when
    return [life for life in lives if life.start <= moment < life.end]


def timeline(lives: list[Life], kinds: list[str], *, points: int = 300) -> dict[str, list[int]]:
    """Return how many bytes of each kind are alive along a trace, in a few points.

    Of each of ``points`` equal stretches of the trace the moment with most bytes is kept, so that
    peaks survive.

    Parameters
    ----------
    kinds : list of str
        A name for each of ``lives``.

    Returns
    -------
    dict
        ``"event"`` (numbers of the events kept), then a list of bytes for each kind, in the order
        in which they first appear.

    Raises
    ------
    ValueError
        If there is not exactly one kind for each life, or no point to keep.
    """
    if len(kinds) != len(lives) or points < 1:
        raise ValueError(f"{len(lives)} lives, {len(kinds)} kinds, {points} points")
    length = max((life.end for life in lives), default=0) + 1
    names = list(dict.fromkeys(kinds))
    changes = np.zeros((len(names), length), dtype=np.int64)
    for life, kind in zip(lives, kinds, strict=True):
        changes[names.index(kind), life.start] += life.size
        changes[names.index(kind), life.end] -= life.size
    alive = changes[:, :-1].cumsum(axis=1)  # the last column only closes what is never freed
    stretches = np.array_split(np.arange(length - 1), min(points, max(length - 1, 1)))
    kept = [int(s[alive[:, s].sum(axis=0).argmax()]) for s in stretches if len(s)]
    return {"event": kept} | {n: alive[i, kept].tolist() for i, n in enumerate(names)}
