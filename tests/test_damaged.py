"""``python -m utils.bounds`` on damaged and odd traces: one clear error, or no false sentence."""

import gzip
import json
import math
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from notebooks import ROOT
from planted import Planted
from utils.bounds import diagnose, label, warnings_about
from utils.bounds.command import main
from utils.profile import load


def host_bound() -> Planted:
    """Two steps of 1 ms with short kernels: the event with number 1 is an operator."""
    planted = Planted()
    for begin in (0, 1_000):
        planted.step(begin, 990)
        for at in range(begin, begin + 900, 30):
            planted.kernel(at + 5, at + 12, 3)
    return planted


def refused(path: Path, capsys) -> str:
    """The one sentence with which the command refuses a file."""
    assert main([str(path)]) == 2
    out, said = capsys.readouterr()
    assert out == "" and len(said.splitlines()) == 1 and path.name in said, said
    return said


# --- events that are no events -------------------------------------------------------------------


def change(**fields):
    """A damage: fields of an event replaced, or removed if they are ``...``."""

    def damage(event: dict) -> dict:
        return {k: v for k, v in (event | fields).items() if v is not ...}

    return damage


def change_args(**fields):
    return lambda event: event | {"args": event["args"] | fields}


EVENTS = {
    "ts a text": (change(ts="1000000005"), "(aten::mul) has 'ts': '1000000005'"),
    "no ts": (change(ts=...), "(aten::mul) has no 'ts'"),
    "no dur": (change(dur=...), "(aten::mul) has no 'dur'"),
    "no tid": (change(tid=...), "(aten::mul) has no 'tid'"),
    "tid a list": (change(tid=[1]), "(aten::mul) has [1] as its 'tid'"),
    "no pid": (change(pid=...), "(aten::mul) has no 'pid'"),
    "no name": (change(name=...), "has no name"),
    "name a number": (change(name=5), "has the name 5, no text"),
    "a number": (lambda event: 5, "is 5, no object"),
    "null": (lambda event: None, "is None, no object"),
    "a list": (lambda event: [event], "no object"),
    "args null": (change(args=None), "has 'args': None"),
    "args a list": (change(args=[1]), "has 'args': [1]"),
    "shapes null": (change_args(**{"Input Dims": None}), "has 'Input Dims': None"),
    "shapes a text": (change_args(**{"Input Dims": "x"}), "has 'Input Dims': 'x'"),
    "shapes of null": (change_args(**{"Input Dims": [None, [3]]}), "has 'Input Dims': [None, [3]]"),
    "shapes of texts": (change_args(**{"Input Dims": [["4"]]}), "has 'Input Dims': [['4']]"),
    "shapes huge": (change_args(**{"Input Dims": [[10**40]]}), "has 'Input Dims': [[1000"),
    "types null": (change_args(**{"Input type": [None]}), "has 'Input type': [None]"),
    "id a text": (change_args(**{"External id": "one"}), "has 'External id': 'one'"),
    "id huge": (change_args(**{"External id": 10**40}), "has 'External id': a huge number"),
    "ts huge": (change(ts=10**400), "has 'ts': a huge number"),
    "ts negative": (change(ts=-5.0), "has 'ts': -5.0"),
    "ts NaN": (change(ts=math.nan), "has 'ts': nan"),
    "ts infinite": (change(ts=math.inf), "has 'ts': inf"),
    "dur negative": (change(dur=-5), "has 'dur': -5"),
    "dur NaN": (change(dur=math.nan), "has 'dur': nan"),
    "ts true": (change(ts=True), "has 'ts': True"),
    "cat a list": (change(cat=["cpu_op"]), "has ['cpu_op'] as its 'cat'"),
    "cat an object": (change(cat={}), "has {} as its 'cat'"),
}


@pytest.mark.parametrize("damage, says", EVENTS.values(), ids=EVENTS)
def test_a_damaged_event_is_named_with_its_field_and_value(tmp_path, capsys, damage, says) -> None:
    planted = host_bound()
    planted.events[1] = damage(planted.events[1])
    said = refused(planted.write(tmp_path), capsys)
    assert "event 1 " in said and says in said, said


@pytest.mark.parametrize("field, value", [("correlation", "x"), ("bytes", -4), ("device", 1.5)])
def test_a_damaged_field_of_gpu_work_is_named(tmp_path, capsys, field, value) -> None:
    planted = Planted().step(0, 100).copy(1, 2, 5, 50, "HtoD", 2**20)
    planted.events[-1]["args"][field] = value
    said = refused(planted.write(tmp_path), capsys)
    assert f"event 2 (Memcpy HtoD (Pageable -> Device)) has {field!r}: {value!r}" in said


@pytest.mark.parametrize(
    "properties",
    [{"name": "NVIDIA H200"}, ["NVIDIA H200"], "NVIDIA H200", [{"name": "NVIDIA H200", "id": {}}]],
)
def test_device_properties_that_are_no_list_of_gpus(tmp_path, capsys, properties) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(host_bound().document() | {"deviceProperties": properties}))
    assert "deviceProperties" in refused(path, capsys)


# --- files that are no traces --------------------------------------------------------------------

TEXT = json.dumps(host_bound().document())
FILES = {
    "empty": (b"", "is empty"),
    "spaces": (b" \n ", "is empty"),
    "cut off": (TEXT[:900].encode(), "is cut off at character 897"),
    "cut in a list": (b'{"traceEvents": [{"ph": "X"},', "is cut off at character 29"),
    "not closed": (b'{"traceEvents": []', "is cut off at character 18"),
    "two documents": (TEXT.encode() + b"{}", "something follows its end"),
    "torn gzip": (gzip.compress(TEXT.encode())[:-40], "is not a complete trace"),
    "damaged gzip": (gzip.compress(TEXT.encode())[:50] + bytes(99), "is not a complete trace"),
    "binary": (bytes(range(256)), "is no JSON at character 0"),
    "binary in a list": (b'{"traceEvents": [\xff\xfe\x00]}', "is no JSON at character 17"),
    "zeros": (bytes(99), "is no JSON at character 0"),
    "a text": (b"hello", "is no JSON at character 0: it begins with neither { nor ["),
    "a list of numbers": (b"[1, 2]", "event 0 is 1, no object"),
    "an empty list": (b"[]", "holds no event of torch.profiler"),
    "a notebook": (b'{"cells": []}', "has no list of traceEvents"),
    "traceEvents an object": (b'{"traceEvents": {}}', "has no list of traceEvents"),
    "no events": (b'{"traceEvents": []}', "holds no event of torch.profiler"),
    "another tool": (
        b'{"traceEvents": [{"ph": "X", "cat": "gc", "name": "a", "ts": 1, "dur": 1}]}',
        "Categories here: gc",
    ),
    "deep": (b'{"traceEvents": ' + b"[" * 10**6, "is not a complete trace"),
    "deep beside": (b'{"a": ' + b"[" * 10**6, "nested too deeply"),
    "a huge integer": (b'{"a": ' + b"9" * 5000 + b', "traceEvents": []}', "{"),
    "a colon too few": (b'{"a" 1}', "a key and a colon should stand here"),
    "a comma too few": (b'{"traceEvents": [{} {}]}', "a comma or ] should stand here"),
}


@pytest.mark.parametrize("content, says", FILES.values(), ids=FILES)
def test_a_file_that_is_no_trace_is_named_with_the_place(tmp_path, capsys, content, says) -> None:
    path = tmp_path / "trace{.json"
    path.write_bytes(content)
    assert says in refused(path, capsys)


def test_a_folder_a_missing_and_a_forbidden_file(tmp_path, capsys, monkeypatch) -> None:
    assert "is a folder" in refused(tmp_path, capsys)
    assert "no such trace" in refused(tmp_path / "gone.json", capsys)

    def forbidden(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert "not allowed to read it" in refused(tmp_path / "forbidden.json", capsys)


# --- traces that are odd, but true ---------------------------------------------------------------


def test_control_characters_in_names_are_read(tmp_path) -> None:
    """Kineto writes them as they are."""
    path = tmp_path / "trace.json"
    path.write_text(TEXT.replace("aten::mul", "aten\tmul"))
    assert diagnose(load(path)).bound == "python"


def test_names_that_are_not_utf8_are_read(tmp_path) -> None:
    """Some exporters write them."""
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT.encode().replace(b"aten::mul", b"aten::\xff\xfe"))
    assert diagnose(load(path)).bound == "python"


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_files_bytes_tell_whether_it_is_compressed(tmp_path, suffix) -> None:
    for content in (TEXT.encode(), gzip.compress(TEXT.encode())):
        path = tmp_path / f"trace{suffix}"
        path.write_bytes(content)
        assert diagnose(load(path)).bound == "python"


def test_a_list_of_events_is_read(tmp_path) -> None:
    """As PyTorch 1.8 wrote it."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(host_bound().events))
    assert diagnose(load(path)).bound == "python"


def test_names_of_fields_in_other_letters_are_the_same_fields(tmp_path) -> None:
    planted = Planted().step(0, 300)
    for i in range(20):
        shapes = {"Input Dims": [[2**27]], "Input type": ["float"]}
        planted.kernel(5 * i, 110 + 240 * i, 239, **shapes)
    known = diagnose(planted.trace(tmp_path))
    assert known.bound == "memory"
    for event in planted.events:
        event["args"] = {key.lower(): value for key, value in event["args"].items()}
    assert diagnose(planted.trace(tmp_path)) == known


def test_numbers_in_quotation_marks_are_numbers(tmp_path) -> None:
    """ROCm writes the sizes of copies so."""
    planted = Planted().step(0, 100).copy(1, 2, 5, 50, "HtoD", 2**20).kernel(60, 62, 9)
    for event in planted.events:
        event["args"] |= {"bytes": "4096"} if "emcpy" in event["name"] else {}
    assert planted.trace(tmp_path).work[0].bytes == 4096


OLD = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy"}


def test_traces_of_old_pytorch_are_read(tmp_path) -> None:
    """1.8 to 1.11: other categories, identifiers as texts, ranges among the operators."""
    planted = host_bound().copy(1_950, 5, 1_960, 10, "HtoD", 2**20)
    today = diagnose(planted.trace(tmp_path))
    for event in planted.events:
        if event["cat"] == "user_annotation":
            event |= {"cat": "Operator", "name": f"ProfilerStep#{event['ts']}"}
        event["cat"] = OLD.get(event["cat"], event["cat"])
        event["tid"] = f"stream {event['tid']}" if event["tid"] == 20 else str(event["tid"])
        if "External id" in event["args"] and event["cat"] != "Operator":
            event["args"]["external id"] = event["args"].pop("External id")
    old = diagnose(planted.trace(tmp_path))
    assert old.bound == "python" and old.evidence.shares == today.evidence.shares
    assert old.evidence.marked and old.evidence.steps == 2
    assert load(tmp_path / "planted.json.gz").work[-1].stream == 20


def test_where_a_launch_has_the_number_of_its_call_the_operator_lies_around_it(tmp_path) -> None:
    """PyTorch 1.12 to 2.0: the external id is the correlation, and some operator's as well."""
    planted = Planted().step(0, 300)
    for i in range(20):
        shapes = {"Input Dims": [[2**27]], "Input type": ["float"]}
        planted.kernel(10 * i, 210 + 240 * i, 239, **shapes)
    for event in planted.events:
        if "correlation" in event["args"]:
            event["args"]["External id"] = event["args"]["correlation"]
        elif "External id" in event["args"]:
            event["args"]["External id"] = 21 - event["args"]["External id"]  # of another one
    trace = planted.trace(tmp_path)
    op = trace.operator_of(trace.work[0])
    assert op.begin == 0 and diagnose(trace).bound == "memory"
    trace = planted.kernel(900, 5_100, 9, op=None).trace(tmp_path)
    assert trace.operator_of(trace.work[-1]) is None, "no operator lies around this launch"


def without(planted: Planted, *categories: str) -> Planted:
    planted.events = [event for event in planted.events if event["cat"] not in categories]
    return planted


@pytest.mark.parametrize(
    "missing",
    [
        ("cuda_runtime",),
        ("cuda_runtime", "cpu_op"),
        ("cuda_runtime", "cpu_op", "user_annotation"),
    ],
)
def test_without_calls_nothing_is_said_of_the_host(tmp_path, missing) -> None:
    found = diagnose(without(host_bound(), *missing).trace(tmp_path))
    assert found.bound == "unclear" and "no CUDA calls that would say why" in found.reason
    assert found.evidence.kernels * found.evidence.steps == 60
    assert "ProfilerActivity.CPU" in found.next
    assert any("no launch in the file" in text for text in warnings_about(found.evidence))


def test_calls_without_any_kernel_are_not_called_an_idle_gpu(tmp_path, capsys) -> None:
    said = refused(without(host_bound(), "kernel").write(tmp_path), capsys)
    assert "the host calls CUDA, but the profile holds no kernels" in said


def test_work_of_another_accelerator_is_not_called_an_idle_gpu(tmp_path, capsys) -> None:
    planted = without(host_bound(), "kernel", "cuda_runtime").add("mtia_ccp_events", "x", 5, 9)
    assert "an accelerator which this tool does not read: mtia" in refused(
        planted.write(tmp_path), capsys
    )


@pytest.mark.parametrize("scale", [0, 1e-3])
def test_kernels_that_take_no_time_are_not_called_short(tmp_path, capsys, scale) -> None:
    """Durations in ms, or zero."""
    planted = without(host_bound(), "user_annotation")
    for event in planted.events:
        event |= {"dur": event["dur"] * scale}
    assert "are the times of the file in µs?" in refused(planted.write(tmp_path), capsys)


SHAPES = {
    "lists in a product": ("aten::mm", {"Input Dims": [[[5, 5]], [[5, 5]]]}),
    "a product of nothing": ("aten::mm", {"Input Dims": [[], [3, 3]]}),
    "a sum of nothing": ("aten::addmm", {"Input Dims": [[3, 3], [], [3, 3]]}),
    "negative sizes": ("aten::mm", {"Input Dims": [[-3, 5], [5, 7]]}),
    "a stride of 0": (
        "aten::cudnn_convolution",
        {"Input Dims": [[1, 3, 9, 9], [8, 3, 3, 3]], "Concrete Inputs": ["", "", *["[0, 0]"] * 3]},
    ),
    "more than a number holds": ("aten::mm", {"Input Dims": [[2**62] * 40] * 2}),
    "fewer shapes than types": (
        "aten::_fused_adam_",
        {"Input Dims": [[4]], "Input type": ["TensorList"] * 6 + ["Scalar"] * 7 + [""] * 2},
    ),
}


@pytest.mark.parametrize("op, shapes", SHAPES.values(), ids=SHAPES)
def test_shapes_that_no_operator_has_tell_of_no_work(tmp_path, op, shapes) -> None:
    types = {"Input type": ["float"] * 3}
    planted = Planted().step(0, 1_000).kernel(5, 10, 900, op=op, **types | shapes)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear" and found.evidence.products in (0, 1)


def test_steps_within_steps_are_not_counted(tmp_path) -> None:
    planted = host_bound()
    known = diagnose(planted.trace(tmp_path))
    assert warnings_about(known.evidence) == []
    planted.step(10, 950).step(1_010, 400).step(1_500, 400).step(300, 0).step(500, 900)
    found = diagnose(planted.trace(tmp_path))
    assert found.reason == known.reason and found.evidence.steps == 2
    assert warnings_about(found.evidence)[0].startswith("5 of the 7 ranges that mark steps")


def test_work_that_begins_before_its_launch_is_doubted(tmp_path) -> None:
    planted = host_bound()
    for event in planted.events:
        event["ts"] -= 20 * (event["cat"] == "kernel")
    said = warnings_about(diagnose(planted.trace(tmp_path)).evidence)
    assert said[0].startswith("100% of the GPU's work begins before its launch")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_terminal_that_does_not_know_the_micro_sign(tmp_path, options) -> None:
    command = [sys.executable, "-m", "utils.bounds", str(host_bound().write(tmp_path)), *options]
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and done.stderr == ""
    reason = json.loads(done.stdout)["reason"] if options else done.stdout
    assert ("995 µs" in reason) if options else (r"995 \xb5s" in reason)


# --- several ranks -------------------------------------------------------------------------------


def merged(pids: tuple[int, int], gpus: tuple[int, int]) -> Planted:
    """Two processes in one file: one waits for Python, the other keeps its GPU busy."""
    slow, busy = host_bound(), Planted()
    for begin in (0, 1_000):
        busy.step(begin, 990)
        for at in range(begin, begin + 900, 100):
            busy.kernel(at + 5, at + 12, 99)
    for planted, pid, gpu in ((slow, *(pids[0], gpus[0])), (busy, pids[1], gpus[1])):
        for event in planted.events:
            on_gpu = event["cat"] == "kernel"
            event["pid"] = gpu if on_gpu else pid
            event["args"] |= {"device": gpu} if on_gpu else {}
    slow.events += busy.events
    return slow


def test_two_processes_are_noticed_and_one_is_taken(tmp_path, capsys) -> None:
    path = str(merged((7, 8), (0, 1)).write(tmp_path))
    assert main([path]) == 0
    out = capsys.readouterr().out
    assert "warning: several ranks in this file" in out and "this is rank 1" in out
    assert "host, which launches" not in out
    assert main([path, "--rank", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Python: the GPU waits 91% of a step of 995 µs") and "rank 0" in out
    for wrong in ("2", "-1"):
        assert main([path, f"--rank={wrong}"]) == 2
        said = capsys.readouterr().err
        assert "there is no rank" in said and "0: process 0, GPU 0; 1: process 1, GPU 1" in said
    seen = diagnose(load(path), wall=300).evidence
    assert [text.split()[0] for text in warnings_about(seen)] == ["several", "the"]
    assert seen.device == "NVIDIA H200"


def test_processes_whose_launches_have_the_same_numbers_are_not_mixed_up(tmp_path, capsys) -> None:
    said = refused(merged((7, 8), (0, 0)).write(tmp_path), capsys)
    assert "cannot be told apart" in said


def test_processes_are_told_apart_by_their_numbers(tmp_path) -> None:
    planted = merged((7, 8), (0, 0))
    for event in planted.events:
        second = event["pid"] == 8 or (event["args"].get("stream") and event["dur"] == 99)
        for key in ("correlation", "External id"):
            if second and key in event["args"]:
                event["args"][key] += 1_000
    trace = planted.trace(tmp_path)
    assert trace.ranks == [(0, 0), (1, 0)]
    assert [len(trace.rank(i).work) for i in (0, 1)] == [60, 18]


def test_a_second_gpu_that_works_is_noticed(tmp_path) -> None:
    """One process: what the other GPU does must not count as this one's."""
    planted = host_bound()
    for event in planted.events:
        event["args"]["device"] = 0
    for at in range(0, 1_900, 100):
        planted.kernel(at + 5, at + 10, 99)
        planted.events[-1]["args"]["device"] = 1
    trace = planted.trace(tmp_path)
    assert trace.ranks == [(0, 0), (0, 1)]
    assert diagnose(trace, rank=0).bound == "python"
    assert diagnose(trace).evidence.busy > 0.9
    assert "this is rank 1, the one that works most" in warnings_about(diagnose(trace).evidence)[0]
    assert warnings_about(diagnose(trace.rank(0)).evidence) == []


# --- what is not Python --------------------------------------------------------------------------


def test_a_call_that_asks_the_driver_for_memory_has_an_owner_of_its_own(tmp_path) -> None:
    planted = Planted().step(0, 100_000).kernel(5, 10, 900).call("cudaMalloc", 1_000, 90_000)
    found = diagnose(planted.kernel(91_000, 91_010, 8_000).trace(tmp_path))
    assert found.bound == "allocator" and "cudaMalloc 90% of the step" in found.reason
    assert "kernels" not in found.reason and "chapter 2.2" in found.next


@pytest.mark.parametrize(
    "name, owner",
    [
        *[(name, "allocator") for name in ("cudaFree", "cudaHostAlloc", "hipMalloc", "hipFree")],
        *[(name, "allocator") for name in ("cudaMallocAsync", "cuMemCreate", "hipHostMalloc")],
        *[(name, "slow CUDA call") for name in ("cudaStreamCreate", "cudaLaunchKernel")],
        *[(name, "slow CUDA call") for name in ("cudaDeviceSynchronize", "cudaMemGetInfo")],
        ("cudaEventQuery", "silent host"),
    ],
)
def test_owners_of_long_calls(tmp_path, name, owner) -> None:
    planted = Planted().step(0, 10_000).kernel(5, 10, 900).call(name, 1_000, 8_000)
    seen = diagnose(planted.kernel(9_100, 9_110, 50).trace(tmp_path)).evidence
    assert max(seen.shares, key=seen.shares.get) == owner and seen.shares[owner] > 0.79
    named = {} if owner == "silent host" else {name: pytest.approx(seen.shares[owner])}
    assert seen.calls == named


def test_short_calls_that_ask_for_memory_add_up(tmp_path) -> None:
    planted = Planted().step(0, 10_000).kernel(5, 10, 50)
    for at in range(1_000, 9_000, 800):
        planted.call("cudaFree", at, 500).call("cudaMalloc", at + 500, 200)
    seen = diagnose(planted.kernel(9_900, 9_910, 50).trace(tmp_path)).evidence
    assert seen.calls == pytest.approx({"cudaFree": 0.5, "cudaMalloc": 0.2}, rel=0.01)


def test_a_short_call_is_not_slow(tmp_path) -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 50).call("cudaStreamCreate", 100, 800)
    assert diagnose(planted.kernel(910, 920, 50).trace(tmp_path)).bound == "python"


def test_a_long_call_is_slow_only_where_the_gpu_idles_for_long(tmp_path) -> None:
    """A wait that ends half a millisecond after the GPU's work does."""
    planted = (
        Planted().step(0, 6_000).kernel(5, 10, 2_990).call("cudaStreamSynchronize", 500, 3_000)
    )
    shares = diagnose(planted.kernel(5_900, 5_905, 50).trace(tmp_path)).evidence.shares
    assert shares["slow CUDA call"] == 0 and shares["python"] > 0.07


def test_a_thread_that_polls_does_not_break_a_silence(tmp_path) -> None:
    planted = Planted().step(0, 10_000).kernel(5, 10, 50)
    for at in range(100, 9_900, 200):
        planted.call("cudaEventQuery", at, 5, tid=9)
    found = diagnose(planted.kernel(9_900, 9_910, 50).trace(tmp_path))
    assert found.bound == "unclear" and "makes no CUDA call" in found.reason


@pytest.mark.parametrize(
    "name, op, more",
    [
        ("void all_reduce_one_shot<float>", None, {}),
        ("ncclDevKernel_AllReduce", None, {}),
        ("rcclGenericKernel", None, {}),
        ("void sglang::cross_device_reduce_1stage<float>", "aten::mul", {}),
        ("my_kernel", "c10d::allreduce_", {}),
        ("my_kernel", "record_param_comms", {}),
        ("my_kernel", None, {"Collective name": "allreduce"}),
    ],
)
def test_an_all_reduce_of_another_name_is_communication(tmp_path, name, op, more) -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 900, name, op=op)
    planted.events[-1]["args"] |= more
    assert diagnose(planted.trace(tmp_path)).bound == "other GPUs"


def test_a_kernel_that_nobody_launched_is_not_called_narrow_without_doubt(tmp_path) -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 900, "my_kernel", op=None)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear" and "nothing is known of their work" in found.reason


@pytest.mark.parametrize("of_roof, bound", [(0.3, "unclear"), (0.5, "memory")])
def test_kernels_far_from_their_roof_are_not_called_bound_by_it(tmp_path, of_roof, bound) -> None:
    took = 2 * 2**29 / 4.8e6 / of_roof  # 512 MiB read and written, on an H200
    planted = Planted().step(0, took)
    planted.kernel(5, 10, took, **{"Input Dims": [[2**27]], "Input type": ["float"]})
    found = diagnose(planted.trace(tmp_path))
    assert found.evidence.of_bandwidth == pytest.approx(of_roof, rel=0.01)
    assert found.evidence.shares["memory"] > 0.9 and found.bound == bound, found
    assert ("only 30% of the bandwidth" in found.reason) == (bound == "unclear")


def test_more_than_a_roof_is_neither_called_bound_nor_averaged(tmp_path) -> None:
    """The cache of a language model: all of it is an argument, and a few rows are written."""
    planted = Planted().step(0, 1_000)
    shapes = {"Input Dims": [[2**30, 64], [16]], "Input type": ["float", "long int"]}
    planted.kernel(5, 10, 700, op="aten::embedding", **shapes)
    planted.kernel(8, 710, 224, **{"Input Dims": [[2**27]], "Input type": ["float"]})
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear" and "more than 100% of a roof" in found.reason
    assert found.evidence.of_bandwidth == pytest.approx(1, abs=0.01)


def test_recording_a_graph_is_no_step(tmp_path) -> None:
    planted = host_bound().call("cudaStreamBeginCapture", 10, 2).call("cudaGraphInstantiate", 40, 9)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear" and "captures a CUDA graph" in found.reason


def test_an_empty_last_step_is_none(tmp_path) -> None:
    """What lies between the last ``profiler.step()`` and the end of the profile."""
    planted = host_bound()
    whole = diagnose(planted.trace(tmp_path))
    assert diagnose(planted.step(1_995, 20).trace(tmp_path)) == whole


def test_work_that_was_launched_long_ago_is_not_the_hosts_fault(tmp_path) -> None:
    """The GPU may be busy with what was launched before the profile began."""
    planted = Planted().step(0, 10_000).kernel(5, 8_000, 500).kernel(20, 8_500, 1_000)
    found = diagnose(planted.trace(tmp_path))
    assert found.evidence.shares["idle, already launched"] == pytest.approx(0.8, abs=0.01)
    assert found.bound == "unclear" and "did not record" in found.reason


def test_copies_to_the_host_are_not_called_data_for_the_gpu(tmp_path) -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 90).copy(20, 900, 110, 800, "DtoH", 2**20)
    assert "80% for copies to the host" in diagnose(planted.trace(tmp_path)).reason


def test_the_whole_profile_is_not_called_a_step(tmp_path) -> None:
    found = diagnose(without(host_bound(), "user_annotation").trace(tmp_path))
    assert "no steps marked" in found.reason and "a step of" not in found.reason


# --- where a silent host is ----------------------------------------------------------------------


def silent() -> Planted:
    return Planted().step(0, 10_000).kernel(5, 10, 50).kernel(9_900, 9_910, 50)


def test_stacks_split_a_silent_host(tmp_path) -> None:
    planted = silent().add("python_function", "train.py(3): main", 0, 10_000)
    planted.add("python_function", "train.py(9): parse", 1_000, 6_000)
    planted.add("python_function", "<built-in function sleep>", 2_000, 4_000)
    planted.add("python_function", "threading.py(3): wait", 0, 10_000, tid=9)
    found = diagnose(planted.trace(tmp_path))
    silence = 9_901 - 9
    expected = {
        "<built-in function sleep> in train.py(9): parse": 4_000,
        "train.py(3): main": silence - 6_000,
        "train.py(9): parse": 2_000,
    }
    seen = found.evidence.silent_in
    assert list(seen) == list(expected)
    assert seen == pytest.approx({name: us / silence for name, us in expected.items()}, rel=0.01)
    assert "sleep> in train.py(9): parse 41%" in found.reason
    assert "with_stack" not in found.next


def test_without_stacks_operators_split_it_or_else_stacks_are_recommended(tmp_path) -> None:
    assert "with_stack=True" in diagnose(silent().trace(tmp_path)).next
    found = diagnose(silent().add("cpu_op", "aten::sort", 100, 9_000).trace(tmp_path))
    assert "it is in aten::sort 91%" in found.reason


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wall, says",
    [
        ("0.995", "less than the"),  # ms
        ("-5", "above 0"),
        ("0", "above 0"),
        ("nan", "above 0"),
        ("inf", "above 0"),
        ("2000", "more than the 995 µs"),
        ("50", "less than the 90 µs that the GPU works"),
    ],
)
def test_a_time_without_the_profiler_that_cannot_be_true(tmp_path, capsys, wall, says) -> None:
    path = host_bound().write(tmp_path)
    assert main([str(path), f"--wall-us={wall}"]) == 2
    out, said = capsys.readouterr()
    assert out == "" and says in said and len(said.splitlines()) == 1, said


def test_the_peaks_of_another_makers_card_are_refused(tmp_path, capsys) -> None:
    planted = host_bound()
    planted.device = "AMD Instinct MI300X"
    path = str(planted.write(tmp_path))
    assert main([path]) == 0 and "Python: " in capsys.readouterr().out
    assert main([path, "--gpu", "H200 SXM"]) == 2
    assert "AMD Instinct MI300X" in capsys.readouterr().err


def test_json_has_everything_that_the_text_has(tmp_path, capsys) -> None:
    path = str(merged((7, 8), (0, 1)).write(tmp_path))
    assert main([path, "--rank", "0"]) == 0
    text = capsys.readouterr().out
    assert main([path, "--rank", "0", "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out.count("\n") == 1
    assert found.keys() == {"bound", "reason", "shares", "evidence", "warnings", "next"}
    assert text.startswith(f"{label(found['bound'])}: {found['reason']}")
    assert text.rstrip().endswith(f"next: {found['next']}")
    assert f"warning: {found['warnings'][0]}" in text
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["evidence"]["steps"] == 2


def test_every_owner_has_a_next_step_and_a_chapter_that_is_there() -> None:
    from utils.bounds import OWNERS
    from utils.bounds.verdict import NEXT

    book = Path(__file__).parent.parent / "book"
    assert NEXT.keys() == set(OWNERS)
    for text in NEXT.values():
        numbers = [
            word.strip("(),.;") for word in text.split() if word[:1].isdigit() or "." in word
        ]
        chapters = [n for n in numbers if len(n) == 3 and n[1] == "."]
        assert chapters and all(list(book.glob(f"{n[0]}{n[2]}_*.ipynb")) for n in chapters), text


def test_a_damage_is_not_made_by_reading(tmp_path) -> None:
    planted = host_bound()
    before = deepcopy(planted.events)
    planted.trace(tmp_path)
    assert planted.events == before
