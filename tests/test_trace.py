"""Traces: what the profiler writes is read whole, saved scrubbed, and never taken for another."""

import gzip
import json
import math
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch.profiler import profile, record_function

from notebooks import BOOK
from planted import Planted, host_bound
from utils.bounds import diagnose
from utils.profile import Span, Trace, TraceError, Work, busy, files, gaps, load, save
from utils.profile.files import scrub
from utils.record import NotRecorded, load_record

COMMITTED = sorted((BOOK / "traces").glob("*.json.gz"))


def step() -> Planted:
    """Two operators on two threads: the first one's kernel runs after its launch has returned."""
    planted = Planted("NVIDIA Test").add("Trace", "PyTorch Profiler (0)", -50, 300, tid="Traces")
    planted.add("user_annotation", "step", 0, 100, **{"External id": 1})
    planted.add("cpu_op", "aten::linear", 5, 30, **{"External id": 2})
    planted.add("cpu_op", "aten::mm", 10, 20, **{"External id": 3, "Input Dims": [[4, 4]]})
    planted.add("cuda_runtime", "cudaLaunchKernel", 12, 6, correlation=21)
    link = {"correlation": 21, "stream": 13, "External id": 3}
    planted.add("kernel", "gemm", 40, 50, tid=4, **link)
    planted.add("cpu_op", "aten::copy_", 110, 20, tid=9, **{"External id": 4})
    planted.add("cuda_runtime", "cudaMemcpyAsync", 112, 16, tid=9, correlation=22)
    link = {"correlation": 22, "stream": 13, "bytes": 64, "External id": 4}
    planted.add("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 130, 10, tid=13, **link)
    memory = {"cat": "cpu_instant_event", "name": "[memory]", "args": {"Bytes": 8, "Addr": 5}}
    planted.events.append({"ph": "i", "pid": 7, "tid": 7, "ts": 1e9 + 3, **memory})
    planted.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[OutOfMemory]"})
    planted.events.append({"ph": "s", "cat": "cpu_op", "name": "a flow, as of another tool"})
    planted.events.append({"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 1e9})
    return planted


@pytest.fixture
def trace() -> Trace:
    return step().trace()


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Path:
    """No committed traces, and nowhere to record to."""
    monkeypatch.delenv("BOOK_RECORD_TO", raising=False)
    monkeypatch.setattr(files, "TRACES", tmp_path / "traces")
    monkeypatch.setattr(files, "LIVE", tmp_path / "traces" / "live")
    return tmp_path


# --- reading -------------------------------------------------------------------------------------


def test_spans_have_their_kinds_times_and_threads(trace) -> None:
    assert trace.device == "NVIDIA Test"
    assert [(s.name, s.begin, s.end, s.thread) for s in trace.ranges] == [("step", 0, 100, 0)]
    assert [s.thread for s in trace.operators] == [0, 0, 1]
    gemm, copy = trace.work
    assert (gemm.kind, gemm.stream, gemm.duration, gemm.bytes) == ("kernel", 13, 50, 0)
    assert (copy.kind, copy.direction, copy.bytes) == ("copy", "HtoD", 64)
    assert gemm.direction is None and gemm.device == copy.device == 7
    assert [(s.begin, s.end, s.args) for s in trace.memory] == [(3, 3, {"Bytes": 8, "Addr": 5})]
    assert repr(trace).startswith("Trace(1 ranges, 3 operators, 2 calls, 2 work")


def test_the_stall_that_the_trace_names_is_loaded() -> None:
    """A full queue, as CUPTI reports it, lies inside the launch that it made wait."""
    full = load(BOOK / "traces" / "full_queue.json.gz")
    (stall,) = full.overhead
    assert (stall.name, stall.thread) == ("Command Buffer Full", -1)
    blocked = max(full.calls, key=lambda c: c.duration if "Launch" in c.name else 0)
    assert blocked.begin <= stall.begin and stall.end <= blocked.end + 1
    assert stall.duration > 0.99 * blocked.duration
    assert full.within(blocked).overhead == [stall]
    assert full.within(stall.end).overhead == []


def test_the_order_of_the_events_in_the_file_does_not_count(trace) -> None:
    turned = step()
    turned.events.reverse()
    assert turned.trace() == trace


@pytest.mark.parametrize(
    "category", ["user_annotation", "cpu_op", "cuda_runtime", "cuda_driver", "python_function"]
)
def test_the_main_thread_is_number_0_even_if_it_began_later(category) -> None:
    planted = Planted().add(category, "first", 0, 1, tid=9).add(category, "main", 5, 1, tid=7)
    found = planted.trace()
    spans = [*found.ranges, *found.operators, *found.calls, *found.python]
    assert [(span.name, span.thread) for span in spans] == [("first", 1), ("main", 0)]


def test_work_is_matched_with_its_launch_and_its_innermost_operator(trace) -> None:
    assert [(call.name, work.name) for call, work in trace.launches()] == [
        ("cudaLaunchKernel", "gemm"),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)"),
    ]
    assert trace.operator_of(trace.work[0]).name == "aten::mm"
    assert trace.operator_of(Work("unknown", 0, 1)) is None
    assert Trace(work=trace.work).launches() == []


def by_number(turned: int, of: int = 20) -> Planted:
    """Kernels whose launches have another number than their operator, as PyTorch 1.12 to 2.0."""
    planted = Planted().step(0, 300)
    for i in range(of):
        shapes = {"Input Dims": [[2**27]], "Input type": ["float"]}
        planted.kernel(10 * i, 210 + 240 * i, 239, **shapes)
    for event in planted.events:
        args = event["args"]
        launch = args.get("correlation")
        if launch and launch < turned:
            args["External id"] = launch
        elif "External id" in args or launch:
            args["External id"] = of + 1 - (launch or args["External id"])
    return planted


def test_where_a_launch_has_the_number_of_its_call_the_operator_lies_around_it() -> None:
    """PyTorch 1.12 to 2.0: the external id is the correlation, and some operator's as well."""
    planted = by_number(turned=99)
    trace = planted.trace()
    assert [trace.operator_of(w).begin for w in trace.work[:2]] == [0, 10]
    assert diagnose(trace).bound == "memory"
    trace = planted.kernel(900, 5_100, 9, op=None).trace()
    assert trace.operator_of(trace.work[-1]) is None, "no operator lies around this launch"
    trace = planted.call("cudaLaunchKernel", 3.5, 0.1).trace()  # within another call
    assert trace.operator_of(Work("", 0, 1, args={"correlation": planted.count})).begin == 0


@pytest.mark.parametrize("turned, by_call", [(9, False), (12, True)])
def test_most_launches_tell_whose_number_they_have(turned, by_call) -> None:
    """A number may be that of a call and of an operator by chance."""
    trace = by_number(turned).trace()
    first = [trace.operator_of(w).begin for w in trace.work]
    assert first[-1] == 190 and (first[0] == 0) is by_call


def test_a_cut_holds_the_work_that_was_launched_inside_even_if_it_runs_later(trace) -> None:
    cut = trace.within(0, 30)
    assert [w.name for w in cut.work] == ["gemm"] and cut.work[0].begin == 40
    assert [c.name for c in cut.calls] == ["cudaLaunchKernel"]
    assert trace.within(trace.range("step")).work == cut.work
    assert [w.kind for w in trace.within(100).work] == ["copy"]
    # A call that launches nothing is not the launch of work without one.
    lost = Trace(calls=[Span("cudaDeviceSynchronize", 0, 1)], work=[Work("unknown", 2, 3)])
    assert lost.within(0, 10).work == [] and lost.launches() == []


def test_a_cut_holds_of_every_kind_what_began_from_its_begin_up_to_before_its_end() -> None:
    spans = [Span("a", 0, 30), Span("b", 10, 90), Span("c", 20, 21)]
    kinds = ("ranges", "operators", "calls", "python", "memory")
    cut = Trace(**dict.fromkeys(kinds, spans)).within(10, 20)
    assert [[span.name for span in getattr(cut, kind)] for kind in kinds] == [["b"]] * 5
    assert not Trace(calls=spans).within(-5, 0).calls


def test_a_range_is_known_by_its_whole_name_or_those_that_are_there_are_listed() -> None:
    trace = Trace(ranges=[Span("step by step", 0, 1), Span("step", 2, 3)])
    assert trace.range("step").begin == 2
    with pytest.raises(TraceError, match=r"0 ranges .* 'epoch'.*\['step', 'step by step'\]"):
        trace.range("epoch")
    with pytest.raises(TraceError, match="1 ranges are called 'step', and number 1"):
        trace.range("step", 1)


def test_busy_and_gaps_count_overlaps_once() -> None:
    spans = [Span("a", 10, 20), Span("b", 15, 30), Span("c", 40, 50)]
    assert busy(spans) == 30 and busy([]) == 0
    assert gaps(spans, 0, 60) == [(0, 10), (30, 40), (50, 60)]
    assert gaps(spans, 12, 45) == [(30, 40)]
    assert gaps(spans, 35, 38) == [(35, 38)] and gaps([], 1, 2) == [(1, 2)]
    assert gaps(spans, 10, 50) == [(30, 40)] and gaps(spans, 10, 30) == []
    assert busy([Span("around", 0, 10), Span("inside", 2, 3)]) == 10


def test_a_real_profile_on_the_cpu(folders) -> None:
    a = torch.ones(8, 8)
    with profile(record_shapes=True, profile_memory=True) as profiler:
        for _ in range(2):
            with record_function("step"):
                a @ a
    trace = load(save(profiler, "products"))
    inside = trace.within(trace.range("step", 1))
    assert [op.name for op in inside.operators][:2] == ["aten::matmul", "aten::mm"]
    assert inside.operators[1].args["Input Dims"] == [[8, 8], [8, 8]]
    assert trace.memory and not trace.work


def test_the_gpu_is_the_one_that_worked_or_of_the_only_kind(tmp_path) -> None:
    planted = Planted().kernel(5, 10, 3)
    for properties, work, name in (
        ([{"id": 1, "name": "A"}, {"id": 0, "name": "B"}], 1, "A"),
        ([{"name": "A"}, {"name": "B"}], 1, "B"),
        ([{"id": 1, "name": "A"}, {"id": 2, "name": "A"}], 5, "A"),
        ([{"id": 1, "name": "A"}, {"id": 0, "name": "B"}], 5, None),
        ([{"id": 1}], 1, None),
    ):
        planted.events[-1]["args"]["device"] = work
        document = {**planted.document(), "deviceProperties": properties}
        (tmp_path / "trace.json").write_text(json.dumps(document))
        assert load(tmp_path / "trace.json").device == name


def test_a_file_that_merges_processes_is_refused() -> None:
    """They number their launches alike, so that nobody knows whose kernel a kernel is."""
    for category in ("cuda_runtime", "cpu_op"):
        planted = Planted().add(category, "one", 0, 1, correlation=1).add(category, "two", 1, 1)
        planted.events[-1]["pid"] = 8
        with pytest.raises(TraceError, match=r"merges 2 processes: give the trace of one"):
            planted.trace()


# --- odd traces ----------------------------------------------------------------------------------

TEXT = json.dumps(host_bound().document()).encode()
ODD = {
    "compressed": gzip.compress(TEXT),
    "a control character, as of Kineto": TEXT.replace(b"aten::mul", b"aten\tmul\x01"),
    "a name that is not UTF-8": TEXT.replace(b"aten::mul", b"aten::\xff\xfe"),
    "a mark of the order of bytes": b"\xef\xbb\xbf" + TEXT,
    "what is no number": TEXT.replace(b'"corr', b'"GB/s": NaN, "SM": [-inf, nan], "corr'),
    "fields in other letters": TEXT.replace(b"External id", b"external_id").replace(b" D", b" d"),
    "numbers in quotation marks, as of ROCm": TEXT.replace(b'"pid": 7', b'"pid": "7"'),
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_odd_traces_are_read_as_others(tmp_path, content) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    assert diagnose(load(tmp_path / "trace.json")).reason == host_bound().diagnosis().reason


# --- bad input -----------------------------------------------------------------------------------

BROKEN = [
    *[("ts", value) for value in (..., "soon", None, True, -5.0, 1e17, 10**400, math.nan)],
    *[("dur", value) for value in (..., -5, math.nan)],
    *[("tid", ...), ("tid", [1]), ("pid", ...), ("name", ...), ("name", 5), ("args", None)],
    *[("cat", ["cpu_op"]), ("cat", {}), ("args", [1])],
    *[("Input Dims", value) for value in (None, "x", [None, [3]], [["x"]], [3], [[[[3]]]])],
    *[("Input Strides", [None]), ("Input type", [None]), ("Concrete Inputs", {})],
    *[("External id", value) for value in ("one", -1, 10**40, 1.5)],
    *[("correlation", "x"), ("graph id", -4), ("bytes", -4), ("device", 1.5), ("stream", [1])],
    *[("Collective name", 5)],
]


@pytest.mark.parametrize("field, value", BROKEN)
def test_a_damaged_event_is_named_with_its_number_and_field(field, value) -> None:
    planted = host_bound()
    event = planted.events[1]
    (event if field in event else event["args"])[field] = value
    planted.events[1] = {key: of for key, of in event.items() if of is not ...}
    with pytest.raises(TraceError, match=r"planted.json.gz is damaged: .*\$.traceEvents\[1\]") as e:
        planted.trace()
    assert field in str(e.value) and len(str(e.value).splitlines()) == 1


CUT = "is not a complete trace: Input data was truncated"
FILES = {
    "empty": (b"", "is empty"),
    "cut off": (TEXT[:900], CUT),
    "cut in a list": (b'{"traceEvents": [{"ph": "X"},', CUT),
    "torn gzip": (gzip.compress(TEXT)[:-40], "is not a complete trace: Compressed file ended"),
    "damaged gzip": (gzip.compress(TEXT)[:50] + bytes(99), "is not a complete trace: Error"),
    "no gzip": (b"\x1f\x8b but a text", "is not a complete trace: Unknown compression"),
    "a text": (b"hello", "JSON is malformed: invalid character (byte 0)"),
    "deep": (b'{"a": ' + b"[" * 10**6, "maximum recursion depth"),
    "a list of numbers": (b"[1, 2]", "Expected `object`, got `array`"),
    "a notebook": (b'{"cells": []}', "missing required field `traceEvents`"),
    "traceEvents an object": (b'{"traceEvents": {}}', "got `object` - at `$.traceEvents`"),
    "no events": (b'{"traceEvents": []}', "holds no event of torch.profiler"),
    "another tool": (
        b'{"traceEvents": [{"ph": "X", "cat": "gc"}, {"ph": "X", "cat": "Trace"}]}',
        "was anything run under it? Categories here: gc",
    ),
    "one GPU": (b'{"traceEvents": [], "deviceProperties": {}}', "got `object` - at `$.device"),
    "a GPU's name": (b'{"traceEvents": [], "deviceProperties": ["H200"]}', "deviceProperties[0]"),
    "a GPU's id": (b'{"traceEvents": [], "deviceProperties": [{"id": {}}]}', "Properties[0].id"),
}


@pytest.mark.parametrize("content, says", FILES.values(), ids=FILES)
def test_a_file_that_is_no_trace_is_named_with_the_place(tmp_path, content, says) -> None:
    path = tmp_path / "trace{.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        load(path)
    said = str(error.value)
    assert said.startswith(path.name) and says in said and len(said.splitlines()) == 1, said


def test_a_folder_a_missing_and_a_forbidden_file(tmp_path, monkeypatch) -> None:
    with pytest.raises(TraceError, match="Is a directory"):
        load(tmp_path)
    with pytest.raises(TraceError, match=r"gone\.json: No such file"):
        load(tmp_path / "gone.json")

    def forbidden(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(TraceError, match=r"forbidden\.json: Permission denied"):
        load(tmp_path / "forbidden.json")


def test_a_trace_still_to_be_recorded_stays_open() -> None:
    assert isinstance(load(NotRecorded()["trace"]), NotRecorded)


# --- saving --------------------------------------------------------------------------------------

PRIVATE = {
    "/home/ann/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py(17): _call": (
        "torch/nn/modules/module.py(17): _call"
    ),
    "/tmp/ipykernel_123/456.py(3): step": "<cell>(3): step",
    "/home/ann/project/train.py(3): main": "train.py(3): main",
    "/usr/lib/python3/dist-packages/numpy/core.py(3): f": "numpy/core.py(3): f",
    "/usr/lib/python3.12/asyncio/base_events.py(3): f": "asyncio/base_events.py(3): f",
    r"C:\Users\ann\train.py(3): main": "train.py(3): main",
    "<built-in method mm of T object at 0x7f01>": "<built-in method mm of T object>",
    "void f<float, 4>(int, a/b)": "void f<float, 4>(int, a/b)",
}


def test_saving_takes_private_names_away() -> None:
    args = {"Path": "/root/x/y", "memory bandwidth (GB/s)": 3}
    events = [{"name": name, "ts": 1.5, "args": args} for name in PRIVATE]
    private = dict.fromkeys(("traceName", "trace_id", "hostname", "host_name"), "/home/ann/x")
    private |= {"baseTimeNanoseconds": 1792000000000000000, "traceEvents": events}
    assert scrub(private) == {
        "traceEvents": [
            {"name": name, "ts": 1.5, "args": args | {"Path": "y"}} for name in PRIVATE.values()
        ]
    }


def test_a_recorded_trace_goes_to_the_recorder(folders, tmp_path, monkeypatch) -> None:
    source = step().write(tmp_path)
    entry = save(str(source), "step")
    assert (folders / "traces" / "live" / entry["file"]).exists()
    assert save(source, "step") == entry, "the same trace has the same bytes"
    monkeypatch.setenv("BOOK_RECORD_TO", str(tmp_path / "staging"))
    assert save(source, "step") == entry
    assert (tmp_path / "staging" / "step.json.gz").read_bytes()[4:8] == bytes(4), "no date in it"
    (folders / "traces" / "live" / entry["file"]).unlink()
    assert load(entry) == step().trace()


def test_a_live_trace_does_not_hide_the_committed_one(folders, tmp_path) -> None:
    live = save(step().write(tmp_path), "step")
    path = folders / "traces" / "step.json.gz"
    path.write_bytes(gzip.compress(json.dumps(host_bound().document()).encode()))
    committed = {"file": path.name, "sha256": sha256(path.read_bytes()).hexdigest()}
    assert len(load(committed).work) == 60 and len(load(live).work) == 2


def test_bad_names_and_large_traces_are_refused(folders, tmp_path, monkeypatch) -> None:
    source = step().write(tmp_path)
    for name in ("../step", "Step", ""):
        with pytest.raises(TraceError, match="name a trace with lower-case"):
            save(source, name)
    monkeypatch.setattr(files, "LIMIT", 100)
    with pytest.raises(TraceError, match="100 at most: profile fewer steps"):
        save(source, "step")
    assert list(tmp_path.rglob("*.gz")) == [source]


def test_missing_and_damaged_traces_are_named(folders, tmp_path) -> None:
    entry = save(step().write(tmp_path), "step")
    path = folders / "traces" / "live" / "step.json.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TraceError, match=r"book/traces/step\.json\.gz is not the trace that"):
        load(entry)
    path.unlink()
    with pytest.raises(TraceError, match=r"traces/step\.json\.gz is missing.*git checkout"):
        load(entry)


# --- the committed ones --------------------------------------------------------------------------


def entries(value: object) -> list[dict]:
    """Every ``{"file": …, "sha256": …}`` in a record's result."""
    if isinstance(value, dict):
        if value.keys() == {"file", "sha256"}:
            return [value]
        value = list(value.values())
    return [e for item in value for e in entries(item)] if isinstance(value, list) else []


def test_every_committed_trace_belongs_to_one_record_and_every_record_has_its_traces() -> None:
    records = [load_record(path) for path in sorted((BOOK / "records").glob("*.json"))]
    named = {e["file"]: e["sha256"] for record in records for e in entries(record["result"])}
    assert named == {path.name: sha256(path.read_bytes()).hexdigest() for path in COMMITTED}
    assert sum(len(entries(record["result"])) for record in records) == len(COMMITTED)
    others = {p.name for p in (BOOK / "traces").glob("*") if p not in COMMITTED}
    assert others <= {"live"}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_traces_are_small_scrubbed_and_whole(path) -> None:
    assert path.stat().st_size <= files.LIMIT
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert scrub(document) == document, "private names are left: save it again"
    trace = load(path)
    assert trace.operators or trace.work
