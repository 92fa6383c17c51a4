"""What the host was in while the GPU waited: CUDA calls, Python functions, operators, ranges."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise

from utils.bounds.owners import ALLOCATING, SILENCE, Stretch
from utils.profile import Span, Trace, nested

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs from object to object
STEP = re.compile(r"ProfilerStep#|step$")  # the whole step says nothing of a part


def calls_in(trace: Trace, stretches: list[Stretch]) -> dict[str, float]:
    """Return the µs of ``stretches`` in each call that is long or asks for memory, most first."""
    calls = [c for c in trace.calls if c.duration > SILENCE or ALLOCATING.search(c.name)]
    return dict(_time_in(stretches, ((c.begin, c.end, c.name) for c in calls)).most_common())


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
        found = _time_in(stretches, _innermost(mine))
        if total and sum(found.values()) > 0.2 * total:
            parts = {name: us / total for name, us in found.most_common(most)}
            return {name: part for name, part in parts.items() if part > 0.05}
    return {}


def _innermost(spans: list[Span]) -> Iterator[tuple[float, float, str]]:
    """The moments of one thread in which each span is the innermost one: which began last.

    A function of C has no place in a file, so its caller's name stands beside it.
    """
    waiting, going = [], []  # going is a heap, the innermost first
    for span, around in nested(spans):
        name = ADDRESS.sub("", span.name)
        if name.startswith("<built-in") and around:
            name = f"{name} in {ADDRESS.sub('', around[-1].name)}"
        waiting.append((-span.begin, span.end, name))
    waiting.reverse()
    for begin, end in pairwise(sorted({time for s in spans for time in (s.begin, s.end)})):
        while waiting and -waiting[-1][0] <= begin:
            heappush(going, waiting.pop())
        while going and going[0][1] <= begin:
            heappop(going)
        if going:
            yield begin, end, going[0][2]


def _time_in(stretches: list[Stretch], moments: Iterable[tuple[float, float, str]]) -> Counter[str]:
    """How long the moments of each name lie in the stretches, which do not overlap."""
    stretches, found = sorted(stretches), Counter()
    ends = [end for _, end in stretches]
    for begin, end, name in moments:
        for i in range(bisect_right(ends, begin), len(ends)):
            left, right = stretches[i]
            if left >= end:
                break
            found[name] += min(end, right) - max(begin, left)
    return +found
