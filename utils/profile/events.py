"""What the profiler's events must be, and the spans that they become.

Every event is checked here, once: what comes later may rely on it. The names of fields and
categories changed over the years; those of PyTorch 1.8 to 1.11 are read as today's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple

from utils.profile.model import Span, Trace, TraceError, Work
from utils.profile.numbering import Event, device_of, launchers_of, processes_of, threads_of

GPU_WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
# The list of a Trace that events of a category go to. Capitals: PyTorch 1.8 to 1.11.
LISTS = {
    **{"user_annotation": "ranges", "cpu_op": "operators", "python_function": "python"},
    **{"cuda_runtime": "calls", "cuda_driver": "calls", "overhead": "overhead"},
    **{"cpu_instant_event": "memory", "kernel": "work", "gpu_memcpy": "work"},
    **{"gpu_memset": "work", "Operator": "operators", "Runtime": "calls"},
    **{"Kernel": "work", "Memcpy": "work", "Memset": "work"},
}
OLD_WORK = {"Kernel": "kernel", "Memcpy": "copy", "Memset": "set"}
OLD_RANGES = ("ProfilerStep#", "enumerate(DataLoader)", "Optimizer.")  # were operators then
KNOWN = ("Trace", "gpu_user_annotation", "cuda_sync")  # and left out: other events say the same
LATEST = 1e16  # µs: the year 2286
LARGEST = 2**63  # no size, number or identifier of PyTorch is larger


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _signed(value: Any) -> bool:
    return type(value) is int and -LARGEST <= value < LARGEST


def _nested(value: Any) -> bool:
    """True for the sizes of each argument: a list of numbers, or of such lists."""
    if type(value) is not list:
        return False
    for sizes in value:
        if type(sizes) is not list:
            return False
        for size in sizes:
            if not _signed(size) and not (type(size) is list and all(map(_signed, size))):
                return False
    return True


def _texts(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


class Field(NamedTuple):
    """A field of an event's ``args``: what it is called now, and how to check it."""

    name: str
    valid: Callable[[Any], bool]
    is_: str


FIELDS = (
    Field("correlation", _whole, "a number from 0"),
    Field("External id", _whole, "a number from 0"),
    Field("bytes", _whole, "a number of bytes"),
    Field("device", _whole, "the number of a GPU"),
    Field("stream", lambda value: type(value) in (int, str), "the number of a stream"),
    Field("Input Dims", _nested, "a list of sizes"),
    Field("Input Strides", _nested, "a list of strides"),
    Field("Input type", _texts, "a list of types"),
    Field("Concrete Inputs", lambda value: type(value) is list, "a list"),
    Field("graph id", _whole, "a number from 0"),
    Field("Collective name", lambda value: type(value) is str, "a name"),
)
# PyTorch has written "External id", "External Id", "external id", "Input Dims" and "Input dims".
SPELLED = {
    label: field
    for field in FIELDS
    for label in (
        *(field.name, field.name.lower(), field.name.title()),
        *(field.name.capitalize(), field.name.replace(" ", "_").lower()),
    )
}
NOTHING: Mapping[str, Any] = {}


def parse(events: Iterable[Any], name: str, facts: Mapping[str, Any]) -> Trace:
    """Return the trace that ``events`` tell of, the fields checked.

    Parameters
    ----------
    events : iterable
        Of a Chrome trace, in any order.
    name : str
        Of the file, for messages.
    facts : mapping
        What stands beside the events; read after them.

    Raises
    ------
    TraceError
        If there is no event of a profile, or one is damaged; the message has its number, counted
        from 0, its field and its value.
    """
    lists: dict[str, list[Event]] = {kind: [] for kind in set(LISTS.values())}
    unread: Counter = Counter()
    names: dict[str, str] = {}  # the same few names, once each
    for number, event in enumerate(events):
        try:
            category = event.get("cat")
            if type(category) not in (str, NoneType):
                raise _Damaged(f"has {_shown(category)} as its 'cat', no text")
            into = LISTS.get(category) if event.get("ph") == "X" else None
            if into is None:
                if category == "cpu_instant_event" and event.get("name") == "[memory]":
                    lists["memory"].append(_checked({"dur": 0, **event}, category, names))
                elif event.get("ph") == "X" and category not in KNOWN:
                    unread[str(category)] += 1
                continue
            found = _checked(event, category, names)
        except _Damaged as damage:
            raise TraceError(f"{name}: event {number} {damage}") from None
        except AttributeError:
            raise TraceError(f"{name}: event {number} is {_shown(event)}, no object") from None
        if category == "Operator" and found.name.startswith(OLD_RANGES):
            into = "ranges"
        lists[into].append(found)
    every = [event for found in lists.values() for event in found]
    if not every:
        raise TraceError(
            f"{name} holds no event of torch.profiler: was anything run under it?"
            + (f" Categories here: {', '.join(sorted(unread))}" if unread else "")
        )
    return _trace(lists, unread, _names_of_gpus(facts, name), name)


class _Damaged(Exception):
    """What is wrong with an event."""


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 40 else text[:37] + "…"


def _checked(event: Mapping[str, Any], category: str, names: dict[str, str]) -> Event:
    name = event.get("name")
    if type(name) is not str:
        raise _Damaged("has no name" if name is None else f"has the name {_shown(name)}, no text")
    name = names.setdefault(name, name)
    times = []
    for key, what in (("ts", "a time"), ("dur", "a duration")):
        value = event.get(key)
        if type(value) not in (int, float) or not 0 <= value <= LATEST:
            says = f"has no {key!r}" if value is None else f"has {key!r}: {_shown(value)}"
            raise _Damaged(f"({name[:40]}) {says}, where {what} in µs from 0 should stand")
        times.append(value)
    for key in ("pid", "tid"):
        if type(event.get(key)) not in (int, str):
            says = f"{_shown(event[key])} as its" if key in event else "no"
            raise _Damaged(f"({name[:40]}) has {says} {key!r}")
    given = event.get("args", NOTHING)
    if type(given) is not dict and given is not NOTHING:
        raise _Damaged(f"({name[:40]}) has 'args': {_shown(given)}, where an object should stand")
    args = NOTHING
    if category == "cpu_instant_event":
        args = given
    elif category != "python_function" and given:
        args = {}
        for key, value in given.items():
            field = SPELLED.get(key)
            if field is not None:
                if type(value) is str and value.isdecimal() and len(value) < 19:
                    value = int(value)  # as ROCm writes sizes
                if not field.valid(value):
                    said = f"{key!r}: {_shown(value)}"
                    raise _Damaged(f"({name[:40]}) has {said}, where {field.is_} should stand")
                args[field.name] = value
    kind = GPU_WORK.get(category) or OLD_WORK.get(category, "")
    return Event(times[0], times[1], name, event["pid"], event["tid"], args, kind)


def _names_of_gpus(facts: Mapping[str, Any], name: str) -> dict[Any, str]:
    """Name of each GPU of the machine, by its number."""
    gpus = facts.get("deviceProperties", [])
    if type(gpus) is not list or not all(
        type(gpu) is dict and type(gpu.get("id", 0)) in (int, str) for gpu in gpus
    ):
        raise TraceError(f"{name}: deviceProperties is {_shown(gpus)}, no list of GPUs")
    return {gpu.get("id", i): str(gpu["name"]) for i, gpu in enumerate(gpus) if gpu.get("name")}


def _trace(lists: dict[str, list[Event]], unread: Counter, gpus: dict, name: str) -> Trace:
    for found in lists.values():
        found.sort(key=lambda event: event.begin)
    zero = min(found[0].begin for found in lists.values() if found)
    threads, processes = threads_of(lists), processes_of(lists)
    launchers = launchers_of(lists, processes, name)
    spans: dict[str, list] = {}
    for kind, found in lists.items():
        if kind == "work":
            continue
        spans[kind] = [
            Span(
                *(e.name, *_times(e, zero), threads.get((e.pid, e.tid), -1), e.args),
                process=processes.get(e.pid, 0),
            )
            for e in found
        ]
        found.clear()
    work = [
        Work(
            *(e.name, *_times(e, zero), _stream(e), e.args),
            *(e.kind, device_of(e)),
            process=process,
        )
        for e, process in zip(lists["work"], launchers, strict=True)
    ]
    used = {w.device for w in work}
    of_work = {gpus[device] for device in used if device in gpus} or set(gpus.values())
    device = of_work.pop() if len(of_work) == 1 else None
    return Trace(**spans, work=work, device=device, unread=dict(unread))


def _times(event: Event, zero: float) -> tuple[float, float]:
    begin = (
        event.begin - zero
    )  # before the duration is added: a sum of large and small loses digits
    return begin, begin + event.duration


def _stream(event: Event) -> int:
    """The number of the stream; old traces have ``"stream 7"``."""
    said = event.args.get("stream", event.tid)
    digits = "".join(filter(str.isdecimal, str(said)))
    return int(digits[:18] or 0)
