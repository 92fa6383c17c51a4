"""Spans of time, and the trace that holds them: what :mod:`utils.profile.files` reads from a file.

All times are microseconds, counted from the trace's first event.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any


class TraceError(RuntimeError):
    """A trace cannot be saved or read; the message names the file and says what to do."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that began and ended: an operator, a range, a call.

    Attributes
    ----------
    name : str
        As the profiler has it, such as ``"aten::mm"`` or ``"cudaLaunchKernel"``.
    begin, end : float
        Microseconds since the first event of the trace.
    thread : int
        0 for the main thread of the host, others counted from 1; for GPU work, the stream.
    args : dict
        What else the profiler knows and this package uses, such as ``"Input Dims"`` and
        ``"correlation"``.
    """

    name: str
    begin: float
    end: float
    thread: int = 0
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def duration(self) -> float:
        """Microseconds from begin to end."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Work(Span):
    """Something the GPU did: a ``"kernel"``, a ``"copy"`` or a ``"set"`` of memory (``kind``)."""

    kind: str = "kernel"
    device: int = 0

    @property
    def stream(self) -> int:
        """The CUDA stream that it ran on."""
        return self.thread

    @property
    def direction(self) -> str | None:
        """Of a copy: ``"HtoD"``, ``"DtoH"``, ``"DtoD"`` …; None for other work."""
        found = re.match(r"Memcpy (\w+)", self.name) if self.kind == "copy" else None
        return found[1] if found else None

    @property
    def bytes(self) -> int:
        """Bytes copied or set; 0 for a kernel, whose traffic the profiler does not know."""
        return self.args.get("bytes", 0)


@dataclass(frozen=True)
class Trace:
    """One profile, sorted by time; every list may be empty.

    Attributes
    ----------
    ranges : list of Span
        The ``record_function`` ranges, on the host.
    operators : list of Span
        PyTorch's operators, nested ones included.
    calls : list of Span
        Calls of the CUDA or HIP runtime and driver.
    work : list of Work
        What the GPU did.
    python : list of Span
        Python's functions, if the profile was taken ``with_stack``.
    memory : list of Span
        Allocations (``args["Bytes"]`` > 0) and frees, of no duration, if memory was profiled.
    overhead : list of Span
        What CUPTI reports as overhead of its own or of the driver's, such as ``"Command Buffer
        Full"`` (the host waited for space in the queue) or ``"Activity Buffer Request"``. CUPTI
        gives these no thread; it is -1 here.
    device : str or None
        Name of the GPU that did the work; None if the file does not say, or names several.
    unread : dict
        Categories of events that this package does not know, and how many there are of each.
    """

    ranges: list[Span] = field(default_factory=list)
    operators: list[Span] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    python: list[Span] = field(default_factory=list)
    memory: list[Span] = field(default_factory=list)
    overhead: list[Span] = field(default_factory=list)
    device: str | None = None
    unread: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Counts, not thousands of events."""
        counts = ", ".join(f"{len(getattr(self, kind)):,} {kind}" for kind in KINDS)
        return f"Trace({counts}, device={self.device!r})"

    @property
    def steps(self) -> list[Span]:
        """The steps that a profiler's schedule has marked; none without a schedule."""
        return [span for span in self.ranges if span.name.startswith("ProfilerStep#")]

    def range(self, name: str, number: int = 0) -> Span:
        """Return the range called ``name``; of several, the one with this ``number`` from 0.

        Raises
        ------
        TraceError
            If there is none; the message lists the names there are.
        """
        found = [span for span in self.ranges if span.name == name]
        try:
            return found[number]
        except IndexError:
            names = sorted({span.name for span in self.ranges}) or "none"
            raise TraceError(
                f"{len(found)} ranges are called {name!r}, and number {number} was asked for; "
                f"ranges of this trace: {names}"
            ) from None

    def within(self, begin: float | Span, end: float | None = None) -> "Trace":
        """Return what *began* on the host from ``begin`` to ``end``, and the GPU work it launched.

        The work itself may run later: the GPU has a queue. A span stands for its begin and end.
        """
        if isinstance(begin, Span):
            begin, end = begin.begin, begin.end
        end = float("inf") if end is None else end
        kept = self._where(lambda span: begin <= span.begin < end)
        asked = {_link(call) for call in kept.calls if "correlation" in call.args}
        return replace(kept, work=[work for work in self.work if _link(work) in asked])

    def launches(self) -> list[tuple[Span, Work]]:
        """Return each call beside the work that it launched; a graph's call launches many."""
        return self._launches

    @cached_property
    def _launches(self) -> list[tuple[Span, Work]]:
        calls = {_link(call): call for call in self.calls if "correlation" in call.args}
        pairs = ((calls.get(_link(work)), work) for work in self.work)
        return [(call, work) for call, work in pairs if call is not None]

    def operator_of(self, work: Work) -> Span | None:
        """Return the innermost operator that launched ``work``, or None if none did."""
        if self._numbered_by_calls:
            return self._by_call.get(_link(work))
        return self._by_external_id.get(work.args.get("External id"))

    @property
    def gpus(self) -> list[int]:
        """The numbers of the GPUs that worked: several, if the process uses several."""
        return sorted({work.device for work in self.work})

    def of_gpu(self, number: int) -> "Trace":
        """Return the trace without the work of other GPUs than the one with this ``number``."""
        return replace(self, work=[work for work in self.work if work.device == number])

    def _where(self, wanted: Callable[[Span], bool]) -> "Trace":
        return replace(self, **{kind: [*filter(wanted, getattr(self, kind))] for kind in KINDS})

    @cached_property
    def _by_external_id(self) -> dict[int, Span]:
        return {op.args["External id"]: op for op in self.operators if "External id" in op.args}

    @cached_property
    def _numbered_by_calls(self) -> bool:
        """True where PyTorch 1.12 to 2.0 wrote the call's number in place of the operator's."""
        both = [c for c in self.calls if {"External id", "correlation"} <= c.args.keys()]
        same = sum(call.args["External id"] == call.args["correlation"] for call in both)
        return same > len(both) / 2

    @cached_property
    def _by_call(self) -> dict[int, Span]:
        """The innermost operator around each call that has one."""
        threads: dict[int, list[Span]] = defaultdict(list)
        for span in (*self.operators, *self.calls):
            threads[span.thread].append(span)
        calls, found = {id(call) for call in self.calls}, {}
        for spans in threads.values():
            for span, around in nested(spans):
                operators = [op for op in around if id(op) not in calls]
                if operators and "correlation" in span.args:
                    found[_link(span)] = operators[-1]
        return found


KINDS = ("ranges", "operators", "calls", "work", "python", "memory", "overhead")


def _link(span: Span) -> int | None:
    """What a launch and its work have in common."""
    return span.args.get("correlation")


def nested(spans: Iterable[Span]) -> Iterator[tuple[Span, list[Span]]]:
    """Yield the ``spans`` of one thread by their begin, each with those around it, outermost first.

    The list is used again: it holds for the moment.
    """
    around: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        while around and around[-1].end <= span.begin:
            around.pop()
        yield span, around
        around.append(span)


def busy(spans: Iterable[Span]) -> float:
    """Microseconds in which at least one of ``spans`` was going on."""
    return sum(end - begin for begin, end in _union(spans))


def gaps(spans: Iterable[Span], begin: float, end: float) -> list[tuple[float, float]]:
    """Return the stretches from ``begin`` to ``end`` in which none of ``spans`` was going on."""
    found, at = [], begin
    for left, right in _union(spans):
        if left >= end:
            break
        if left > at:
            found.append((at, left))
        at = max(at, right)
    return [*found, (at, end)] if at < end else found


def _union(spans: Iterable[Span]) -> list[tuple[float, float]]:
    joined: list[list[float]] = []
    for begin, end in sorted((span.begin, span.end) for span in spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return [(begin, end) for begin, end in joined]
