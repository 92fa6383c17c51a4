"""Traces: what the profiler writes is read back whole, scrubbed, and never taken for another."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.profiler import profile, record_function

from notebooks import BOOK
from utils.profile import Span, Trace, TraceError, Work, busy, gaps, load, save
from utils.profile import files as module
from utils.profile.files import scrub
from utils.record import NotRecorded, load_record

COMMITTED = sorted((BOOK / "traces").glob("*.json.gz"))


def event(category: str, name: str, begin: float, duration: float, tid: int = 7, **args) -> dict:
    times = {"ts": 1e9 + begin, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, **times, "args": args}


def document(*events: dict) -> dict:
    return {"traceEvents": list(events), "deviceProperties": [{"name": "NVIDIA Test"}]}


# One step of two operators: the second one's kernel runs after its launch has returned.
STEP = document(
    event("Trace", "PyTorch Profiler (0)", -50, 300, tid="Traces"),  # what the profiler did itself
    event("user_annotation", "step", 0, 100, **{"External id": 1}),
    event("cpu_op", "aten::linear", 5, 30, **{"External id": 2}),
    event("cpu_op", "aten::mm", 10, 20, **{"External id": 3, "Input Dims": [[4, 4], [4, 4]]}),
    event("cuda_runtime", "cudaLaunchKernel", 12, 6, correlation=21),
    event("kernel", "gemm", 40, 50, tid=4, correlation=21, stream=13, **{"External id": 3}),
    event("cpu_op", "aten::copy_", 110, 20, tid=9, **{"External id": 4}),
    event("cuda_runtime", "cudaMemcpyAsync", 112, 16, tid=9, correlation=22),
    event(
        *("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 130, 10, 13),
        **{"correlation": 22, "stream": 13, "bytes": 64, "External id": 4},
    ),
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 7, "ts": 1e9 + 3},
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 1e9},
)


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Path:
    """No committed traces, and nowhere to record to."""
    monkeypatch.delenv("BOOK_RECORD_TO", raising=False)
    monkeypatch.setattr(module, "TRACES", tmp_path / "traces")
    monkeypatch.setattr(module, "LIVE", tmp_path / "traces" / "live")
    return tmp_path


def write(path: Path, content: dict) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def step(tmp_path) -> Trace:
    return load(write(tmp_path / "step.json", STEP))


# --- reading -----------------------------------------------------------------------------------


def test_spans_have_their_kinds_times_and_threads(step) -> None:
    assert step.device == "NVIDIA Test"
    assert [(s.name, s.begin, s.end, s.thread) for s in step.ranges] == [("step", 0, 100, 0)]
    assert [s.thread for s in step.operators] == [0, 0, 1]
    gemm, copy = step.work
    assert (gemm.kind, gemm.stream, gemm.duration, gemm.bytes) == ("kernel", 13, 50, 0)
    assert (copy.kind, copy.direction, copy.bytes) == ("copy", "HtoD", 64)
    assert gemm.direction is None
    assert [(s.begin, s.end) for s in step.memory] == [(3, 3)]
    assert repr(step).startswith("Trace(1 ranges, 3 operators, 2 calls, 2 work")


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


def test_the_order_of_the_events_in_the_file_does_not_count(step, tmp_path) -> None:
    turned = {**STEP, "traceEvents": STEP["traceEvents"][::-1]}
    assert load(write(tmp_path / "turned.json", turned)) == step


@pytest.mark.parametrize(
    "category", ["user_annotation", "cpu_op", "cuda_runtime", "cuda_driver", "python_function"]
)
def test_the_main_thread_is_number_0_even_if_it_began_later(tmp_path, category) -> None:
    two = document(event(category, "first", 0, 1, tid=9), event(category, "main", 5, 1, tid=7))
    trace = load(write(tmp_path / "two.json", two))
    spans = [*trace.ranges, *trace.operators, *trace.calls, *trace.python]
    assert [(span.name, span.thread) for span in spans] == [("first", 1), ("main", 0)]


@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver"])
def test_runtime_and_driver_launch_work(tmp_path, category) -> None:
    call = event(category, "launch", 0, 1, correlation=5)
    kernel = event("kernel", "gemm", 2, 1, tid=20, correlation=5)
    trace = load(write(tmp_path / "launch.json", document(call, kernel)))
    assert [(call.name, work.name) for call, work in trace.launches()] == [("launch", "gemm")]
    assert Trace(work=trace.work).launches() == []


def test_work_is_matched_with_its_launch_and_its_innermost_operator(step) -> None:
    assert [(call.name, work.name) for call, work in step.launches()] == [
        ("cudaLaunchKernel", "gemm"),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)"),
    ]
    assert step.operator_of(step.work[0]).name == "aten::mm"
    assert step.operator_of(Work("unknown", 0, 1)) is None


def test_a_cut_holds_the_work_that_was_launched_inside_even_if_it_runs_later(step) -> None:
    cut = step.within(0, 30)
    assert [w.name for w in cut.work] == ["gemm"] and cut.work[0].begin == 40
    assert [c.name for c in cut.calls] == ["cudaLaunchKernel"]
    assert step.within(step.range("step")).work == cut.work
    assert [w.kind for w in step.within(100).work] == ["copy"]


def test_a_cut_holds_of_every_kind_what_began_from_its_begin_up_to_before_its_end() -> None:
    spans = [Span("a", 0, 30), Span("b", 10, 90), Span("c", 20, 21)]
    kinds = ("ranges", "operators", "calls", "python", "memory")
    cut = Trace(**dict.fromkeys(kinds, spans)).within(10, 20)
    assert [[span.name for span in getattr(cut, kind)] for kind in kinds] == [["b"]] * 5
    assert not Trace(calls=spans).within(-5, 0).calls


def test_a_cut_leaves_out_work_whose_launch_nobody_knows() -> None:
    """A call that launches nothing is not its launch."""
    trace = Trace(calls=[Span("cudaDeviceSynchronize", 0, 1)], work=[Work("unknown", 2, 3)])
    assert trace.within(0, 10).work == [] and trace.launches() == []


def test_the_main_thread_of_an_old_trace_is_named_in_quotation_marks(tmp_path) -> None:
    first, main = event("cpu_op", "first", 0, 1, tid="9"), event("cpu_op", "main", 5, 1, tid="7")
    trace = load(write(tmp_path / "old.json", document(first, main)))
    assert [(op.name, op.thread) for op in trace.operators] == [("first", 1), ("main", 0)]


def test_a_range_is_known_by_its_whole_name() -> None:
    trace = Trace(ranges=[Span("step by step", 0, 1), Span("step", 2, 3)])
    assert trace.range("step").begin == 2


def test_a_range_that_is_not_there_lists_those_that_are(step) -> None:
    with pytest.raises(TraceError, match=r"0 ranges are called 'epoch'.*\['step'\]"):
        step.range("epoch")
    with pytest.raises(TraceError, match="1 ranges are called 'step', and number 1"):
        step.range("step", 1)


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


# --- saving ------------------------------------------------------------------------------------


def test_saving_takes_private_names_away() -> None:
    frame = "/home/ann/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py(17): _call"
    private = {
        **document(
            event("python_function", frame, 0, 1),
            event("python_function", "/tmp/ipykernel_123/456.py(3): step", 0, 1),
            event("python_function", "/home/ann/project/train.py(3): main", 0, 1, Path="/root/x/y"),
            event("python_function", "/usr/lib/python3/dist-packages/numpy/core.py(3): f", 0, 1),
            event("python_function", "/usr/lib/python3.12/asyncio/base_events.py(3): f", 0, 1),
            event("python_function", r"C:\Users\ann\train.py(3): main", 0, 1),
            event("python_function", "<built-in method mm of T object at 0x7f01>", 0, 1),
            event("kernel", "void f<float, 4>(int, a/b)", 0, 1, **{"memory bandwidth (GB/s)": 3}),
        ),
        "traceName": "/home/ann/trace.json",
        "trace_id": "4F6E",
        "hostname": "anns-laptop",
        "host_name": "anns-laptop",
        "baseTimeNanoseconds": 1792000000000000000,
    }
    scrubbed = scrub(private)
    assert scrubbed.keys() == document().keys()
    assert [e["name"] for e in scrubbed["traceEvents"]] == [
        "torch/nn/modules/module.py(17): _call",
        "<cell>(3): step",
        "train.py(3): main",
        "numpy/core.py(3): f",
        "asyncio/base_events.py(3): f",
        "train.py(3): main",
        "<built-in method mm of T object>",
        "void f<float, 4>(int, a/b)",
    ]
    assert scrubbed["traceEvents"][2]["args"] == {"Path": "y"}
    assert scrubbed["traceEvents"][-1]["args"] == {"memory bandwidth (GB/s)": 3}
    assert "ann" not in json.dumps(scrubbed)


def test_a_recorded_trace_goes_to_the_recorder_and_a_live_one_beside(
    folders, tmp_path, monkeypatch
) -> None:
    source = write(tmp_path / "exported.json", STEP)
    entry = save(str(source), "step")
    assert (folders / "traces" / "live" / entry["file"]).exists()
    assert save(source, "step") == entry, "the same trace has the same bytes"
    monkeypatch.setenv("BOOK_RECORD_TO", str(tmp_path / "staging"))
    assert save(source, "step") == entry
    assert (tmp_path / "staging" / "step.json.gz").read_bytes()[4:8] == bytes(4), "no date in it"
    (folders / "traces" / "live" / entry["file"]).unlink()
    assert len(load(entry).work) == 2


def test_a_live_trace_does_not_hide_the_committed_one(folders, tmp_path) -> None:
    live = save(write(tmp_path / "exported.json", STEP), "step")
    (folders / "traces" / "step.json.gz").write_bytes(gzip.compress(json.dumps(STEP).encode()))
    path = folders / "traces" / "step.json.gz"
    committed = {"file": path.name, "sha256": module.hashlib.sha256(path.read_bytes()).hexdigest()}
    assert committed["sha256"] != live["sha256"]
    assert len(load(committed).work) == len(load(live).work) == 2


def test_bad_names_and_large_traces_are_refused(folders, tmp_path, monkeypatch) -> None:
    source = write(tmp_path / "exported.json", STEP)
    for name in ("../step", "Step", ""):
        with pytest.raises(TraceError, match="name a trace with lower-case"):
            save(source, name)
    monkeypatch.setattr(module, "LIMIT", 100)
    with pytest.raises(TraceError, match="100 at most: profile fewer steps"):
        save(source, "step")
    assert not list(tmp_path.rglob("*.gz"))


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("cut.json", json.dumps(STEP).encode()[:300], "cut.json is not a complete trace"),
        (
            "cut.json.gz",
            gzip.compress(b"{}" * 999, mtime=0)[:-9],
            "cut.json.gz is not a complete trace",
        ),
        ("not.json.gz", b"plain", "not.json.gz is not a complete trace"),
        ("list.json", b"[]", "list.json holds no event of torch.profiler"),
        ("other.json", b'{"cells": []}', "other.json is not a Chrome trace"),
        ("empty.json", b'{"traceEvents": []}', "empty.json holds no event"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_bad_files_are_named(tmp_path, name, content, says) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=says):
        load(tmp_path / name)


def test_a_trace_still_to_be_recorded_stays_open() -> None:
    assert isinstance(load(NotRecorded()["trace"]), NotRecorded)


def test_missing_and_damaged_traces_are_named(folders, tmp_path) -> None:
    with pytest.raises(TraceError, match=r"gone\.json: no such trace"):
        load(tmp_path / "gone.json")
    entry = save(write(tmp_path / "exported.json", STEP), "step")
    path = folders / "traces" / "live" / "step.json.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TraceError, match=r"book/traces/step\.json\.gz is not the trace that"):
        load(entry)
    path.unlink()
    with pytest.raises(TraceError, match=r"traces/step\.json\.gz is missing.*git checkout"):
        load(entry)


# --- the committed ones ------------------------------------------------------------------------


def entries(value: object) -> list[dict]:
    """Every ``{"file": …, "sha256": …}`` in a record's result."""
    if isinstance(value, dict):
        if value.keys() == {"file", "sha256"}:
            return [value]
        value = list(value.values())
    return [e for item in value for e in entries(item)] if isinstance(value, list) else []


def test_every_committed_trace_belongs_to_one_record_and_every_record_has_its_traces() -> None:
    records = [load_record(path) for path in sorted((BOOK / "records").glob("*.json"))]
    named = [entry["file"] for record in records for entry in entries(record["result"])]
    assert sorted(named) == [path.name for path in COMMITTED]
    for record in records:
        for entry in entries(record["result"]):
            path = BOOK / "traces" / entry["file"]
            assert module.hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"], path


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_traces_are_small_scrubbed_and_whole(path) -> None:
    assert path.stat().st_size <= module.LIMIT
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert scrub(document) == document, "private names are left: save it again"
    assert load(path).operators or load(path).work


def test_nothing_else_lies_among_the_traces() -> None:
    others = [p.name for p in (BOOK / "traces").glob("*") if p not in COMMITTED]
    assert set(others) <= {"live"}
