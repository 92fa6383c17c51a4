"""What the profiler saw: traces saved without private names, and read back as spans of time.

``torch.profiler`` writes Chrome traces: one JSON event for every operator, CUDA call, kernel and
copy. :func:`save` keeps such a trace beside a record, scrubbed and compressed; :func:`load` reads
it, or any other, into a :class:`utils.profile.model.Trace`. :mod:`msgspec` checks every field on
the way: what comes later may rely on it.
"""

import gzip
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from utils.profile.model import KINDS, Span, Trace, TraceError, Work
from utils.record import TRACES, NotRecorded

if TYPE_CHECKING:  # importing it takes seconds, and whoever has a profiler has imported it
    from torch.profiler import profile

LIVE = TRACES / "live"  # a reader's own; git ignores it
LIMIT = 1_000_000  # bytes of a committed trace, compressed

# Where a library lies differs between machines, and a home folder names its user.
LIBRARY = re.compile(r"(?:/[^\s/:]+)+/(?:site-packages|dist-packages|lib/python\d\.\d+)/")
CELL = re.compile(r"(?:/[^\s/:]+)+/ipykernel_\d+/\d+\.py")
FOLDER = re.compile(r"(?<![\w.>*&)/\\])(?:[A-Z]:)?(?:[/\\][\w.@+~-]+)+[/\\](?=[\w.@+~-])")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def save(source: "profile | str | Path", name: str) -> dict[str, Any]:
    """Keep a trace for the page and for Perfetto, scrubbed of what is private to this machine.

    Parameters
    ----------
    source : torch.profiler.profile, str or Path
        A profiler whose profile has ended, or a Chrome trace that another process exported.
    name : str
        Lower-case letters, digits and underscores; the file is ``book/traces/NAME.json.gz`` while
        recording, ``book/traces/live/NAME.json.gz`` otherwise.

    Returns
    -------
    dict
        ``{"file": …, "sha256": …}``: to be returned from the experiment, and given to :func:`load`.

    Raises
    ------
    TraceError
        If the name is no such name, or the trace is larger than 1 MB compressed.
    """
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise TraceError(f"{name!r}: name a trace with lower-case letters, digits and underscores")
    if isinstance(source, str | Path):
        document = decode(Path(source), dict)
    else:
        with tempfile.TemporaryDirectory() as folder:
            source.export_chrome_trace(f"{folder}/trace.json")
            document = decode(Path(folder, "trace.json"), dict)
    text = json.dumps(scrub(document), separators=(",", ":"))
    data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    if len(data) > LIMIT:
        raise TraceError(
            f"{name}.json.gz would have {len(data):,} bytes, {LIMIT:,} at most: profile fewer "
            "steps, or without stacks and shapes"
        )
    folder = Path(os.environ.get("BOOK_RECORD_TO") or LIVE)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{name}.partial"
    partial.write_bytes(data)
    partial.replace(folder / f"{name}.json.gz")
    return {"file": f"{name}.json.gz", "sha256": hashlib.sha256(data).hexdigest()}


def scrub(document: dict) -> dict:
    """Return the trace ``document`` without folders, identifiers and times of this machine.

    ``/home/me/.venv/lib/python3.12/site-packages/torch/x.py`` becomes ``torch/x.py``, a notebook's
    cell ``<cell>``, any other file its name.
    """

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, str):
            value = FOLDER.sub("", LIBRARY.sub("", CELL.sub("<cell>", value)))
            return ADDRESS.sub("", value)
        return value

    private = ("traceName", "trace_id", "hostname", "host_name", "baseTimeNanoseconds")
    return clean({key: value for key, value in document.items() if key not in private})


def load(source: Mapping[str, str] | str | Path) -> Trace:
    """Read a trace; one that is still to be recorded stays a :class:`utils.record.NotRecorded`.

    Parameters
    ----------
    source : mapping, str or Path
        What :func:`save` returned, in this session or in a record; or the path of any Chrome trace
        of ``torch.profiler``, compressed or not.

    Raises
    ------
    TraceError
        If the file is missing, is not the one that :func:`save` described, or is damaged: the
        message names it and the place.
    """
    if isinstance(source, NotRecorded):
        return source
    if isinstance(source, Mapping):
        source = _find(source)
    return read(Path(source))


def _find(entry: Mapping[str, str]) -> Path:
    """The file that ``entry`` describes: being recorded, live, or committed."""
    folders = [Path(os.environ["BOOK_RECORD_TO"])] if os.environ.get("BOOK_RECORD_TO") else []
    there = [f / entry["file"] for f in (*folders, LIVE, TRACES) if (f / entry["file"]).exists()]
    for path in there:
        if hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]:
            return path
    again = f"Restore it: git checkout book/traces/{entry['file']}"
    if not there:
        raise TraceError(f"book/traces/{entry['file']} is missing. {again}")
    raise TraceError(
        f"book/traces/{entry['file']} is not the trace that its record describes: damaged, or "
        f"recorded at another time. {again}"
    )


# The list of a Trace that events of a category go to.
LISTS = {
    **{"user_annotation": "ranges", "python_function": "python", "overhead": "overhead"},
    **{"cpu_op": "operators", "cuda_runtime": "calls", "cuda_driver": "calls"},
    **{"kernel": "work", "gpu_memcpy": "work", "gpu_memset": "work"},
}
KNOWN = ("Trace", "gpu_user_annotation", "cuda_sync")  # and left out: other events say the same

Time = Annotated[float, msgspec.Meta(ge=0, le=1e16)]  # µs, until the year 2286
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # nothing of PyTorch is larger
Sizes = list[list[int | list[int]]]  # of each argument, which may be a list of tensors
FIELDS = {
    **{"correlation": Whole, "External id": Whole, "graph id": Whole},
    **{"bytes": Whole, "device": Whole, "stream": int | str, "Collective name": str},
    **{"Input Dims": Sizes, "Input Strides": Sizes, "Input type": list[str]},
    **{"Concrete Inputs": list},
}
# PyTorch has written "External id", "External Id", "external id", "Input Dims" and "Input dims".
SPELLED = {
    spelled: name
    for name in FIELDS
    for spelled in (
        name.title(),
        name.capitalize(),
        name.lower(),
        name.lower().replace(" ", "_"),
        name,
    )
}
Args = TypedDict("Args", {key: FIELDS[name] for key, name in SPELLED.items()}, total=False)


class Head(msgspec.Struct):
    """What tells whether an event is read."""

    ph: str = ""
    cat: str | None = None
    name: Any = None


class Moment(msgspec.Struct, kw_only=True, gc=False):
    """An allocation or a free, with all of its ``args``."""

    name: str
    ts: Time
    dur: Time = 0.0
    pid: int | str
    tid: int | str
    args: dict[str, Any] = {}


class Event(Moment, kw_only=True, gc=False):
    """What else is read: it lasts, and of its ``args`` those are kept that are used."""

    cat: str
    dur: Time
    args: Args = {}

    @property
    def device(self) -> int:
        """The number of the GPU that worked."""
        said = self.args.get("device", self.pid)
        return said if isinstance(said, int) else 0


class Gpu(msgspec.Struct):
    """A GPU of the machine, which need not be the one that worked."""

    id: int | str | None = None
    name: str | None = None


class Document(msgspec.Struct):
    """A trace; its events are decoded one by one, so that a large file needs little memory."""

    traceEvents: list[msgspec.Raw]
    deviceProperties: list[Gpu] = []


# Not strict: numbers in quotation marks, as ROCm writes sizes, are numbers.
HEAD, MOMENT, EVENT = (msgspec.json.Decoder(kind, strict=False) for kind in (Head, Moment, Event))
# Kineto does not escape every control character, and Python writes numbers that are no JSON.
CONTROL = dict.fromkeys(range(32), " ")
NO_NUMBER = re.compile(r"(?<=[:,\[])\s*-?(nan|inf|infinity)(?=\s*[,\]}])", re.IGNORECASE)


def decode(path: Path, kind: Any) -> Any:
    """Return what a JSON file holds, compressed or not, as msgspec decodes it to ``kind``.

    Raises
    ------
    TraceError
        If it cannot be read, is cut off, is no JSON, or not of this kind; the message names the
        file and the place.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        # Names that are not UTF-8 occur, and cost no more than a letter.
        text = data.decode("utf-8-sig", errors="replace")
        if not text.strip():
            raise TraceError(f"{path.name} is empty: export the trace again")
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.ValidationError as error:
            raise TraceError(f"{path.name} is not a Chrome trace: {error}") from None
        except msgspec.DecodeError:
            text = NO_NUMBER.sub("null", text.translate(CONTROL))
            return msgspec.json.decode(text, type=kind)
    except (gzip.BadGzipFile, zlib.error, EOFError, RecursionError, msgspec.DecodeError) as error:
        said = f"{path.name} is not a complete trace: {error}"
        raise TraceError(f"{said}. Export it again, when the profiler has ended") from None
    except OSError as error:
        raise TraceError(f"{path.name}: {error.strerror}") from None


def read(path: Path) -> Trace:
    """Return the trace in a file, compressed or not.

    Raises
    ------
    TraceError
        As :func:`decode` does; or if there is no event of a profile, or one is damaged: the message
        has its place, the events counted from 0.
    """
    document = decode(path, Document)
    lists: dict[str, list] = {kind: [] for kind in KINDS}
    unread: Counter = Counter()
    names: dict[str, str] = {}  # the same few names, once each
    for number, raw in enumerate(document.traceEvents):
        try:
            head = HEAD.decode(raw)
            into = LISTS.get(head.cat) if head.ph == "X" else None
            if into:
                event = EVENT.decode(raw)
                event.args = {SPELLED[key]: value for key, value in event.args.items()}
            elif head.cat == "cpu_instant_event" and head.name == "[memory]":
                into, event = "memory", MOMENT.decode(raw)
            else:
                unread[str(head.cat)] += head.ph == "X" and head.cat not in KNOWN
                continue
        except msgspec.ValidationError as error:
            says, _, inside = str(error).partition(" - at `$")
            place = f"$.traceEvents[{number}]{inside.rstrip('`')}"
            raise TraceError(f"{path.name} is damaged: {says} - at `{place}`") from None
        event.name = names.setdefault(event.name, event.name)
        lists[into].append(event)
    unread = +unread
    if not any(lists.values()):
        others = f" Categories here: {', '.join(sorted(unread))}" if unread else ""
        raise TraceError(
            f"{path.name} holds no event of torch.profiler: was anything run under it?{others}"
        )
    return _trace(lists, dict(unread), document.deviceProperties, path.name)


def _trace(lists: dict[str, list], unread: dict[str, int], gpus: list[Gpu], name: str) -> Trace:
    """What the events become: spans from time 0, their threads numbered."""
    for found in lists.values():
        found.sort(key=lambda event: event.ts)
    zero = min(found[0].ts for found in lists.values() if found)
    threads = _threads(lists)
    processes = {event.pid for event in lists["calls"] or lists["operators"]}
    if len(processes) > 1:  # they number their launches alike
        raise TraceError(f"{name} merges {len(processes)} processes: give the trace of one")

    def times(event: Moment) -> tuple[float, float]:
        begin = event.ts - zero  # before the duration is added: the sum would lose digits
        return begin, begin + event.dur

    spans: dict[str, list] = {}
    for kind in KINDS:
        if kind != "work":
            spans[kind] = [
                Span(e.name, *times(e), threads.get((e.pid, e.tid), -1), e.args)
                for e in lists[kind]
            ]
    spans["work"] = [
        Work(e.name, *times(e), _stream(e), e.args, _work_kind(e), e.device) for e in lists["work"]
    ]
    named = {i if gpu.id is None else gpu.id: gpu.name for i, gpu in enumerate(gpus) if gpu.name}
    of_work = {named[w.device] for w in spans["work"] if w.device in named} or {*named.values()}
    return Trace(**spans, device=of_work.pop() if len(of_work) == 1 else None, unread=unread)


def _work_kind(event: Event) -> str:
    return {"gpu_memcpy": "copy", "gpu_memset": "set"}.get(event.cat, "kernel")


def _stream(event: Event) -> int:
    """The number of the stream."""
    return int(re.sub(r"\D", "", str(event.args.get("stream", event.tid))) or 0)


def _threads(lists: dict[str, list]) -> dict[tuple, int]:
    """The number of each host thread: 0 for the main one, which is named as the process."""
    events = [event for kind in ("operators", "ranges", "python", "calls") for event in lists[kind]]
    found = list(dict.fromkeys((e.pid, e.tid) for e in sorted(events, key=lambda e: e.ts)))
    main = next((t for t in found if str(t[0]) == str(t[1])), found[0] if found else None)
    return {thread: i for i, thread in enumerate(sorted(found, key=lambda t: t != main))}
