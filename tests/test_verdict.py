"""What is made of evidence: the verdict, its doubts and its words. The evidence is made by hand."""

import json
import math

import pytest

from utils.bounds import OWNERS, Diagnosis, Evidence, diagnose, next_step, verdict, warnings_about
from utils.bounds.command import check_wall
from utils.bounds.text import as_json, report
from utils.bounds.verdict import NEXT, is_nvidia
from utils.profile import Span, Trace, Work

PARTS = ("exposed_nccl", "exposed_copies", "to_host", "nccl", "pause", "products", "unlaunched")
PARTS += ("of_peak", "of_bandwidth", "beyond", "kernels", "kernel")


def evidence(shares: dict[str, float], **fields) -> Evidence:
    """Of one step of 1 ms, of which owners have ``shares``; nothing else is known of it."""
    known = {"steps": 1, "marked": True, "wall": 1_000.0, "profiled": 1_000.0, "busy": 0.0}
    known |= dict.fromkeys(PARTS, 0.0) | {"host": {}}
    return Evidence(shares=dict.fromkeys(OWNERS, 0.0) | shares, **known | fields)


@pytest.fixture
def judged(monkeypatch):
    """A function that gives the diagnosis for evidence; its step lasts from 100 to 200 µs."""

    def judge(shares: dict[str, float], call=("cudaLaunchKernel", 120), **fields) -> Diagnosis:
        seen = evidence(shares, **fields)
        monkeypatch.setattr(verdict, "examine", lambda trace, **options: seen)
        calls = [Span(name, begin, begin + 1) for name, begin in [call] if name]
        work = [Work("kernel", 150, 160)]
        return diagnose(Trace(ranges=[Span("step", 100, 200)], calls=calls, work=work))

    return judge


# --- the verdict ---------------------------------------------------------------------------------


def test_without_a_bound_the_largest_owner_says_what_to_do(judged) -> None:
    found = judged({"memory": 0.45, "data": 0.4})
    assert found.bound == "unclear" and found.next == f"for memory: {NEXT['memory']}"


@pytest.mark.parametrize("owner, reached", [("memory", "of_bandwidth"), ("arithmetic", "of_peak")])
def test_two_fifths_of_a_roof_are_enough_to_be_bound_by_it(judged, owner, reached) -> None:
    assert judged({owner: 0.9}, **{reached: 0.40}).bound == owner
    assert judged({owner: 0.9}, **{reached: 0.39}).bound == "unclear"


def test_the_rest_must_be_a_majority_without_what_is_impossible(judged) -> None:
    fields = {"of_bandwidth": 0.9, "busy": 1.0}
    assert judged({"memory": 0.75}, beyond=0.25, **fields).bound == "memory"
    found = judged({"memory": 0.75}, beyond=0.26, **fields)
    assert found.bound == "unclear" and "more than 100%" in found.reason
    assert judged({"memory": 0.6}, beyond=0.5, of_bandwidth=0.9, busy=0.1).bound == "memory"


def test_what_kernels_cannot_have_done_says_nothing_of_a_loader(judged) -> None:
    assert judged({"data": 0.6}, beyond=1.0, busy=0.4).bound == "data"


@pytest.mark.parametrize("owner", ["silent host", "python"])
def test_without_any_call_an_idle_gpu_is_nobodys_fault(judged, owner) -> None:
    found = judged({owner: 0.9}, call=("", 0))
    assert found.bound == "unclear" and "no CUDA calls" in found.reason


@pytest.mark.parametrize("owner", ["silent host", "python", "slow CUDA call"])
@pytest.mark.parametrize("name", ["StreamBeginCapture", "StreamEndCapture", "GraphInstantiate"])
def test_a_graph_is_captured_in_the_step(judged, owner, name) -> None:
    for begin, inside in ((99, False), (100, True), (199, True), (200, False)):
        said = judged({owner: 0.9}, call=(f"cuda{name}", begin)).reason
        assert ("captures a CUDA graph" in said) is inside, begin


# --- its words -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count, said", [(1, "1 kernel of 3.0 µs"), (2, "2 kernels of 3.0 µs")])
def test_one_kernel_is_no_plural(judged, count, said) -> None:
    assert said in judged({"python": 0.9}, kernels=count, kernel=3.0).reason


@pytest.mark.parametrize(
    "copies, to_host, said",
    [
        (0.4, 0.20, "40% for the copy itself"),
        (0.4, 0.21, "21% for copies to the host"),
        (0.04, 0.04, "4% for the copy itself"),
        (0.06, 0.06, "6% for copies to the host"),
    ],
)
def test_copies_to_the_host_are_named_if_they_are_most(judged, copies, to_host, said) -> None:
    assert said in judged({"data": 0.9}, exposed_copies=copies, to_host=to_host).reason


@pytest.mark.parametrize("marked, whole", [(True, "step"), (False, "profile")])
def test_three_calls_are_named(judged, marked, whole) -> None:
    calls = {"cudaFree": 0.4, "cudaMalloc": 0.3, "cuMemMap": 0.1, "cuMemUnmap": 0.05}
    said = judged({"allocator": 0.9}, calls=calls, marked=marked).reason
    assert said.endswith(f": cudaFree 40%, cudaMalloc 30%, cuMemMap 10% of the {whole}")


def test_kernels_that_nobody_launched_are_named_if_they_are_most(judged) -> None:
    for part, named in ((0.5, False), (0.51, True)):
        said = judged({"neither roof": 0.9}, unlaunched=part).reason
        assert ("no operator launched most of them" in said) is named


@pytest.mark.parametrize(
    "name, nvidia",
    [
        *[(name, True) for name in ("NVIDIA H200", "Tesla T4", None)],
        *[(name, False) for name in ("AMD Instinct MI300X", "Radeon RX 7900", "Instinct MI250")],
        *[(name, False) for name in ("AMD Custom", "gfx942")],
    ],
)
def test_whose_card_it_is(judged, name, nvidia) -> None:
    assert is_nvidia(name) is nvidia
    said = judged({"neither roof": 0.9}, blind="utils.gpus does not list it", device=name).next
    assert ("--gpu" in said) is nvidia and ("rocprof" in said) is not nvidia


def test_shapes_that_lack_can_be_recorded(judged) -> None:
    found = judged({"neither roof": 0.9}, blind="the profile has no shapes: record_shapes=True")
    assert found.bound == "unclear" and found.next.startswith("profile again, with record_shapes")


def test_only_a_silent_host_needs_stacks() -> None:
    assert next_step("python", evidence({})) == NEXT["python"]
    assert "with_stack=True" in next_step("silent host", evidence({}))
    assert next_step("silent host", evidence({}, silent_in={"f": 0.9})) == NEXT["silent host"]


@pytest.mark.parametrize(
    "shares, fields, said",
    [
        ({"neither roof": 0.1}, {"blind": "no shapes"}, []),
        ({"neither roof": 0.11}, {"blind": "no shapes"}, ["is not known: no shapes"]),
        ({"neither roof": 0.9}, {}, []),
        ({}, {"beyond": 0.05}, []),
        ({}, {"beyond": 0.06}, ["6% of the kernels' time"]),
        ({}, {"nccl": 0.5}, []),
        ({"other GPUs": 0.4}, {"nccl": 0.51}, ["NCCL runs for 51% of the step, for 11% beside"]),
        ({"other GPUs": 0.5}, {"nccl": 0.9}, []),
        ({}, {"notes": ("one", "two"), "beyond": 0.06}, ["one", "two", "6%"]),
    ],
)
def test_warnings_begin_where_they_matter(shares, fields, said) -> None:
    found = warnings_about(evidence(shares, **fields))
    assert len(found) == len(said) and all(map(str.__contains__, found, said)), found


# --- as text, as JSON, held against the stopwatch ------------------------------------------------


def test_owners_of_a_tenth_of_a_percent_are_told_and_smaller_ones_not(judged) -> None:
    shares = {"python": 0.9985, "data": 0.001, "memory": 0.0005, "arithmetic": 0.0004}
    lines = report(judged(shares, nccl=0.3, exposed_nccl=0.2, kernels=7)).splitlines()
    assert lines[1] == "owners of the step: Python 99.9%; data 0.1%; memory 0.1%"
    assert "only NCCL 20.0%" in lines[3] and "7 kernels a step" in lines[3]


def test_json_says_everything_once_in_plain_letters_and_numbers(judged) -> None:
    text = as_json(judged({"python": 0.9}, notes=("doubtful",), device="NVIDIA H200"))
    assert "1,000 µs" in text
    found = json.loads(text)
    assert found["warnings"] == ["doubtful"] and found["shares"]["python"] == 0.9
    assert found["evidence"]["device"] == "NVIDIA H200"
    assert not {"shares", "notes"} & found["evidence"].keys()
    with pytest.raises(ValueError):
        as_json(judged({"python": 0.9}, kernel=math.nan))


def test_the_stopwatchs_time_may_differ_by_five_percent(judged) -> None:
    """The GPU works for 600 µs: more is impossible in less; and the profiler speeds nothing up."""
    parts = {"busy": 0.3, "exposed_nccl": 0.2, "exposed_copies": 0.1}
    seen = evidence({}, profiled=1_200.0, **parts)
    for wall in (None, 572, 1_000, 1_259):
        check_wall(seen, wall)
    with pytest.raises(ValueError, match="less than the 600 µs"):
        check_wall(seen, 571)
    with pytest.raises(ValueError, match="more than the 1,200 µs"):
        check_wall(seen, 1_261)
