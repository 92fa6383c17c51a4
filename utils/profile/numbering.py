"""Which thread, process and GPU an event belongs to: numbers for what a trace may merge."""

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from utils.profile.model import TraceError


class Event(NamedTuple):
    """A checked event, before its thread and its process have numbers."""

    begin: float
    duration: float
    name: str
    pid: int | str
    tid: int | str
    args: Mapping[str, Any]
    kind: str = ""


def device_of(event: Event) -> int:
    """Return the number of the GPU that did a piece of work."""
    said = event.args.get("device", event.pid)
    return said if type(said) is int else 0


def threads_of(lists: dict[str, list[Event]]) -> dict[tuple, int]:
    """Return the number of each host thread: 0 for the main one, which is named as the process."""
    first: dict[tuple, float] = {}
    for kind in ("operators", "ranges", "python", "calls"):
        for event in lists[kind]:
            thread = event.pid, event.tid
            first[thread] = min(event.begin, first.get(thread, sys.float_info.max))
    found = sorted(first, key=lambda thread: first[thread])
    main = next((t for t in found if str(t[0]) == str(t[1])), found[0] if found else None)
    return {thread: i for i, thread in enumerate(sorted(found, key=lambda t: t != main))}


def processes_of(lists: dict[str, list[Event]]) -> dict[int | str, int]:
    """Return the number of each process that calls CUDA; without calls, that has operators."""
    found = {event.pid for event in lists["calls"]} or {e.pid for e in lists["operators"]}
    return {
        pid: i for i, pid in enumerate(sorted(found, key=lambda pid: (len(str(pid)), str(pid))))
    }


def launchers_of(lists: dict[str, list[Event]], processes: dict, name: str) -> list[int]:
    """Return, for each piece of work, the number of the process that launched it."""
    work = lists["work"]
    if len(processes) < 2:
        return [0] * len(work)
    asked: dict[int, dict[int, float]] = {}  # correlation: process: when
    for call in lists["calls"]:
        if "correlation" in call.args:
            asked.setdefault(call.args["correlation"], {})[processes[call.pid]] = call.begin
    may = []
    for event in work:
        calls = asked.get(event.args.get("correlation"), {})
        may.append([process for process, begin in calls.items() if begin <= event.begin])
    gpus: dict[tuple, Counter] = {}  # for each, how much work is surely of which process
    for event, found in zip(work, may, strict=True):
        sure = gpus.setdefault((event.pid, device_of(event)), Counter())
        sure.update(found if len(found) == 1 else ())
    usual = {gpu: max(sure, key=sure.get, default=0) for gpu, sure in gpus.items()}
    if any(len(found) > 1 for found in may):
        # Processes of one program number their launches alike, but each has a GPU of its own.
        launching = sorted({process for found in may for process in found})
        if len(gpus) != len(launching):
            raise TraceError(
                f"{name} merges {len(launching)} processes that use the same numbers for their "
                "launches, so that their kernels cannot be told apart: give the trace of one"
            )
        if len(set(usual.values())) != len(gpus) or any(len(sure) != 1 for sure in gpus.values()):
            order = sorted(gpus, key=lambda gpu: (gpu[1], str(gpu[0])))
            usual = dict(zip(order, launching, strict=True))
    return [
        found[0] if len(found) == 1 else usual[event.pid, device_of(event)]
        for event, found in zip(work, may, strict=True)
    ]
