"""What the host was in while the GPU waited: CUDA calls, Python functions, operators, ranges."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from utils.profile import Span, Trace

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs from object to object
STEP = re.compile(r"ProfilerStep#|step$")  # the whole step says nothing of a part

Stretch = tuple[float, float]


def spent_in(spans: Iterable[Span], stretches: list[Stretch]) -> dict[str, float]:
    """Return the µs of ``stretches`` in which spans of each name were going on, most first."""
    found: dict[str, float] = defaultdict(float)
    moments = [(span.begin, span.end, span.name) for span in spans]
    for name, us in _overlaps(sorted(moments), sorted(stretches)):
        found[name] += us
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def host_was_in(trace: Trace, stretches: list[Stretch], most: int = 3) -> dict[str, float]:
    """Return what the host was in, innermost, as parts of ``stretches``: at most ``most`` names.

    Of the thread that launches most of the GPU's work, since other threads may wait all the time:
    Python's functions if the profile was taken ``with_stack``, else operators, else ranges.
    """
    total = sum(end - begin for begin, end in stretches)
    launching = Counter(call.thread for call, _ in trace.launches()) or Counter([0])
    thread = launching.most_common(1)[0][0]
    for spans in (trace.python, trace.operators, trace.ranges):
        mine = [s for s in spans if s.thread == thread and not STEP.match(s.name)]
        found: dict[str, float] = defaultdict(float)
        for name, us in _overlaps(list(_innermost(mine)), sorted(stretches)):
            found[name] += us
        if total and sum(found.values()) > 0.2 * total:
            names = sorted(found, key=lambda name: -found[name])[:most]
            return {name: found[name] / total for name in names if found[name] > 0.05 * total}
    return {}


def _innermost(spans: list[Span]) -> Iterator[tuple[float, float, str]]:
    """The moments of one thread in which each span is the innermost one.

    A function of C has no place in a file, so its caller's name stands beside it.
    """
    around: list[Span] = []
    at = 0.0

    def moment(until: float) -> Iterator[tuple[float, float, str]]:
        if around and until > at:
            name = ADDRESS.sub("", around[-1].name)
            if name.startswith("<built-in") and len(around) > 1:
                name = f"{name} in {around[-2].name}"
            yield at, until, name

    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        while around and around[-1].end <= span.begin:
            yield from moment(around[-1].end)
            at = max(at, around.pop().end)
        yield from moment(span.begin)
        at = max(at, span.begin)
        around.append(span)
    while around:
        yield from moment(around[-1].end)
        at = max(at, around.pop().end)


def _overlaps(
    moments: list[tuple[float, float, str]], stretches: list[Stretch]
) -> Iterator[tuple[str, float]]:
    """How long each moment lies in the stretches; both sorted, stretches without overlap."""
    first = 0
    for begin, end, name in moments:
        while first < len(stretches) and stretches[first][1] <= begin:
            first += 1
        i = first
        while i < len(stretches) and stretches[i][0] < end:
            us = min(end, stretches[i][1]) - max(begin, stretches[i][0])
            if us > 0:
                yield name, us
            i += 1
