"""What the profiler saw: traces saved without private names, and read back as spans of time.

``torch.profiler`` writes Chrome traces: one JSON event for every operator, CUDA call, kernel and
copy. :func:`save` keeps such a trace beside a record, scrubbed and compressed; :func:`load` reads
it, or any other, into a :class:`utils.profile.model.Trace`.
"""

import gzip
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.profile.model import Trace, TraceError
from utils.profile.reader import decode, read
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
