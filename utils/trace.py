"""What the profiler saw: traces saved without private names, and read back as spans of time.

``torch.profiler`` writes Chrome traces: one JSON event for every operator, CUDA call, kernel and
copy. :func:`save` keeps such a trace beside a record, scrubbed and compressed; :func:`load` reads
it, or any other. All times are microseconds, as in the file, counted from the trace's first event.
"""

import gzip
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch.profiler import profile

from utils.draft import Placeholder
from utils.experiment import RECORDS

TRACES = RECORDS.parent / "traces"
LIVE = TRACES / "live"  # a reader's own; git ignores it
LIMIT = 1_000_000  # bytes of a committed trace, compressed

GPU_WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
CALLS = ("cuda_runtime", "cuda_driver")
# Where a library lies differs between machines, and a home folder names its user.
LIBRARY = re.compile(r"(?:/[^\s/:]+)+/(?:site-packages|dist-packages|lib/python\d\.\d+)/")
CELL = re.compile(r"(?:/[^\s/:]+)+/ipykernel_\d+/\d+\.py")
FOLDER = re.compile(r"(?<![\w.>*&)/\\])(?:[A-Z]:)?(?:[/\\][\w.@+~-]+)+[/\\](?=[\w.@+~-])")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class TraceError(RuntimeError):
    """A trace cannot be saved or read; the message names the file and says what to do."""


@dataclass(frozen=True)
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
        What else the profiler knows, such as ``"Input Dims"`` and ``"correlation"``.
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


@dataclass(frozen=True)
class Work(Span):
    """Something the GPU did: a ``"kernel"``, a ``"copy"`` or a ``"set"`` of memory (``kind``)."""

    kind: str = "kernel"

    @property
    def stream(self) -> int:
        """The CUDA stream that it ran on."""
        return self.thread

    @property
    def direction(self) -> str | None:
        """Of a copy: ``"HtoD"``, ``"DtoH"``, ``"DtoD"`` …; None for other work."""
        found = re.match(r"Memcpy (\w+)", self.name)
        return found[1] if found else None

    @property
    def bytes(self) -> int:
        """Bytes copied or set; 0 for a kernel, whose traffic the profiler does not know."""
        return int(self.args.get("bytes", 0))


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
        Calls of the CUDA runtime and driver.
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
        Name of the GPU.
    """

    ranges: list[Span] = field(default_factory=list)
    operators: list[Span] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    python: list[Span] = field(default_factory=list)
    memory: list[Span] = field(default_factory=list)
    overhead: list[Span] = field(default_factory=list)
    device: str | None = None

    def __repr__(self) -> str:
        """Counts, not thousands of events."""
        kinds = ("ranges", "operators", "calls", "work", "python", "memory", "overhead")
        counts = ", ".join(f"{len(getattr(self, kind)):,} {kind}" for kind in kinds)
        return f"Trace({counts}, device={self.device!r})"

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

        def cut(spans: list[Span]) -> list[Span]:
            return [span for span in spans if begin <= span.begin < end]

        calls = cut(self.calls)
        asked = {call.args.get("correlation") for call in calls}
        return replace(
            self,
            ranges=cut(self.ranges),
            operators=cut(self.operators),
            calls=calls,
            work=[work for work in self.work if work.args.get("correlation") in asked],
            python=cut(self.python),
            memory=cut(self.memory),
            overhead=cut(self.overhead),
        )

    def launches(self) -> list[tuple[Span, Work]]:
        """Return each call beside the work that it launched; a graph's call launches many."""
        calls = {call.args.get("correlation"): call for call in self.calls}
        pairs = ((calls.get(work.args.get("correlation")), work) for work in self.work)
        return [(call, work) for call, work in pairs if call is not None]

    def operator_of(self, work: Work) -> Span | None:
        """Return the innermost operator that launched ``work``, or None if none did."""
        return self._by_external_id.get(work.args.get("External id"))

    @cached_property
    def _by_external_id(self) -> dict[int, Span]:
        return {op.args["External id"]: op for op in self.operators if "External id" in op.args}


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


# --- files -------------------------------------------------------------------------------------


def save(source: profile | str | Path, name: str) -> dict[str, Any]:
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
        document = _read(Path(source))
    else:
        with tempfile.TemporaryDirectory() as folder:
            source.export_chrome_trace(f"{folder}/trace.json")
            document = _read(Path(folder, "trace.json"))
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
    """Read a trace; one that is still to be recorded stays a :class:`utils.draft.Placeholder`.

    Parameters
    ----------
    source : mapping, str or Path
        What :func:`save` returned, in this session or in a record; or the path of any Chrome trace
        of ``torch.profiler``, compressed or not.

    Raises
    ------
    TraceError
        If the file is missing, is not the one that :func:`save` described, or holds no trace.
    """
    if isinstance(source, Placeholder):
        return source
    if isinstance(source, Mapping):
        source = _find(source)
    return _parse(_read(Path(source)), Path(source).name)


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


def _read(path: Path) -> dict:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        document = json.loads(data)
    except FileNotFoundError:
        raise TraceError(f"{path.name}: no such trace") from None
    except (OSError, EOFError, ValueError) as error:  # not gzip, cut off, not JSON
        raise TraceError(f"{path.name} is not a complete trace: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError(f"{path.name} is not a Chrome trace: it has no list of traceEvents")
    return document


def _parse(document: dict, name: str) -> Trace:
    timed = [e for e in document["traceEvents"] if e.get("ph") == "X" or e["name"] == "[memory]"]
    timed = sorted((e for e in timed if "cat" in e and e["cat"] != "Trace"), key=lambda e: e["ts"])
    if not timed:
        raise TraceError(f"{name} holds no event: was anything run under the profiler?")
    zero = timed[0]["ts"]
    number = _threads(timed)
    groups: dict[str, list] = {}
    for event in timed:
        begin, category = event["ts"] - zero, event["cat"]
        end, args = begin + event.get("dur", 0), event.get("args", {})
        if category in GPU_WORK:
            stream = args.get("stream", event["tid"])
            span = Work(event["name"], begin, end, stream, args, GPU_WORK[category])
            category = "work"
        else:
            span = Span(event["name"], begin, end, number.get(event["tid"], -1), args)
            category = "call" if category in CALLS else category
        groups.setdefault(category, []).append(span)
    devices = document.get("deviceProperties") or [{}]
    return Trace(
        ranges=groups.get("user_annotation", []),
        operators=groups.get("cpu_op", []),
        calls=groups.get("call", []),
        work=groups.get("work", []),
        python=groups.get("python_function", []),
        memory=groups.get("cpu_instant_event", []),
        overhead=groups.get("overhead", []),
        device=devices[0].get("name"),
    )


def _threads(events: list[dict]) -> dict[int | str, int]:
    """Number of each host thread: 0 for the main one, whose identifier is the process's."""
    host = [
        e for e in events if e["cat"] in ("cpu_op", "user_annotation", "python_function", *CALLS)
    ]
    found = list(dict.fromkeys(e["tid"] for e in host))
    main = next((e["tid"] for e in host if e["tid"] == e["pid"]), found[0] if found else None)
    return {tid: i for i, tid in enumerate(sorted(found, key=lambda tid: tid != main))}
