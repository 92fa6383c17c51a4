"""The classifier on traces that are planted here, event by event."""

import random
from itertools import pairwise

import pytest

from cases import cases
from planted import H200, T4, Planted, expect, host_bound
from utils.bounds import OWNERS, diagnose, examine, owners
from utils.bounds.evidence import without_profiler
from utils.bounds.owners import LATENCY, SILENCE
from utils.bounds.roofline import NEAR
from utils.bounds.verdict import warnings_about
from utils.profile import Trace


def owned(planted: Planted) -> list[tuple[str, int, int]]:
    """The stretches of a trace, to the µs."""
    return [(owner, round(a), round(b)) for owner, a, b in owners(planted.trace())]


def unshaped(planted: Planted) -> Planted:
    for event in planted.events:
        event["args"].pop("Input Dims", None)
    return planted


# --- each bound, planted -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "range_name", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data"]
)
def test_waiting_for_a_loader(range_name) -> None:
    planted = Planted()
    for i in range(3):
        planted.step(10_000 * i, 9_990).step(10_000 * i + 10, 8_000, range_name)
        planted.kernel(10_000 * i + 8_100, 10_000 * i + 8_110, 1_500)
    found = expect(planted.diagnosis(), "data", data=0.8, steps=3, wall=9_997)
    assert found.evidence.host["loader"] == pytest.approx(0.8, abs=0.002)


def test_waiting_for_a_copy_from_the_host() -> None:
    """The 2 ms in which the call does something else are data's as well."""
    planted = Planted().step(0, 10_000).copy(100, 8_000, 2_000, 6_000, "HtoD", 2**28)
    found = planted.kernel(8_200, 8_210, 900).diagnosis()
    expect(found, "data", "60% for the copy itself", exposed_copies=0.6, data=0.8)


@pytest.mark.parametrize("name", ["aten::pin_memory", "aten::_pin_memory"])
def test_waiting_for_pinning(name) -> None:
    planted = Planted().step(0, 1_000).add("cpu_op", name, 5, 800).kernel(820, 830, 100)
    expect(planted.diagnosis(), "data", data=0.8)


def test_waiting_for_python() -> None:
    planted = Planted().step(0, 3_000)
    for at in range(0, 3_000, 30):
        planted.kernel(at, at + 8, 3)
    expect(planted.diagnosis(), "python", "100 kernels of 3.0 µs", python=0.9)


@pytest.mark.parametrize("of_roof, bound", [(0.9, "memory"), (NEAR / 2, "unclear")])
def test_waiting_for_memory(of_roof, bound) -> None:
    planted = Planted().step(0, 300).elementwise(5, of_roof).elementwise(10, of_roof)
    expect(planted.diagnosis(), bound, of_bandwidth=of_roof)


def test_waiting_for_arithmetic() -> None:
    """Float32 without tensor cores is bound, too; each precision has its peak in test_roofline."""
    planted = Planted().step(0, 300).product(5, 0.7, "float", H200.fp32)
    expect(planted.diagnosis(), "arithmetic", "70% of the peak", of_peak=0.7, products=1)


def test_a_product_with_one_row_is_bound_by_memory() -> None:
    shapes = {"Input Dims": [[1, 16384], [16384, 16384]], "Input type": ["c10::BFloat16"] * 2}
    planted = Planted().step(0, 100).kernel(5, 10, 119, op="aten::mm", **shapes)
    expect(planted.diagnosis(), "memory")


@pytest.mark.parametrize("name, op, more", cases("test_waiting_for_other_gpus"))
def test_waiting_for_other_gpus(name, op, more) -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 190).kernel(20, 200, 600, name, op=op)
    planted.events[-1]["args"] |= more
    expect(planted.diagnosis(), "other GPUs", exposed_nccl=0.6, nccl=0.6)


def test_copies_between_gpus_are_communication() -> None:
    """As nn.DataParallel makes them."""
    planted = Planted().step(0, 1_000).copy(5, 5, 15, 800, "PtoP", 2**30).kernel(20, 816, 90)
    expect(planted.diagnosis(), "other GPUs")


def test_what_runs_beside_the_gpus_own_work_costs_nothing() -> None:
    planted = Planted().step(0, 9_000).elementwise(5, 0.05)
    planted.step(100, planted.end - 200, "data")
    expect(planted.diagnosis(), "unclear", data=0)
    planted = Planted().step(0, 100).elementwise(5, 0.6)
    planted.kernel(20, 15, planted.end - 20, "ncclDevKernel_AllReduce", op=None)
    said = "NCCL runs for 95% of the step, for 95% beside other kernels"
    expect(planted.diagnosis(), "memory", "no_sync", said, exposed_nccl=0)


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
def test_owners_of_long_calls(name, owner) -> None:
    planted = Planted().step(0, 10_000).kernel(5, 10, 900).call(name, 1_000, 8_000)
    found = planted.kernel(9_100, 9_110, 50).diagnosis()
    seen = found.evidence
    assert found.bound == ("allocator" if owner == "allocator" else "unclear")
    assert max(seen.shares, key=seen.shares.get) == owner and seen.shares[owner] > 0.79
    assert seen.calls == ({} if owner == "silent host" else {name: pytest.approx(0.8, abs=0.02)})


def test_short_calls_that_ask_for_memory_add_up() -> None:
    planted = Planted().step(0, 10_000).kernel(5, 10, 50)
    for at in range(1_000, 9_000, 800):
        planted.call("cudaFree", at, 500).call("cudaMalloc", at + 500, 200)
    found = expect(planted.kernel(9_900, 9_910, 50).diagnosis(), "allocator", "chapter 2.2")
    assert found.evidence.calls == pytest.approx({"cudaFree": 0.5, "cudaMalloc": 0.2}, rel=0.01)


def test_a_call_is_slow_only_if_it_lasts_and_the_gpu_idles_meanwhile() -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 50).call("cudaStreamCreate", 100, 800)
    expect(planted.kernel(910, 920, 50).diagnosis(), "python", slow_CUDA_call=0)
    # A wait that ends half a millisecond after the GPU's work does.
    planted = Planted().step(0, 6_000).kernel(5, 10, 2_990)
    planted.call("cudaStreamSynchronize", 500, 3_000).kernel(5_900, 5_905, 50)
    assert expect(planted.diagnosis(), "unclear", slow_CUDA_call=0).evidence.shares["python"] > 0.07


# --- what is no bound ----------------------------------------------------------------------------


def test_half_of_the_step_is_enough_and_less_is_unclear() -> None:
    planted = Planted().step(0, 1_000).step(0, 500, "data").kernel(510, 600, 50)
    expect(planted.diagnosis(), "data", data=0.5)
    planted = Planted().step(0, 1_000).step(0, 480, "data").kernel(500, 510, 5)
    planted.elementwise(515, 2**30 / (H200.bandwidth * 1e3) / 470)
    found = expect(planted.diagnosis(), "unclear", "data, has 48%", "memory 47%")
    assert found.evidence.largest(1) == "data 48%"


@pytest.mark.parametrize("silence, bound", [(SILENCE + 100, "unclear"), (SILENCE - 200, "python")])
def test_a_host_that_falls_silent_is_not_called_slow_to_launch(silence, bound) -> None:
    planted = Planted().step(0, 4 * silence)
    for i in range(4):
        planted.kernel(silence * i, silence * i + 10, 5)
    found = expect(planted.diagnosis(), bound)
    assert ('"data"' in found.next) == (bound == "unclear")


def test_a_thread_that_polls_does_not_break_a_silence() -> None:
    planted = Planted().step(0, 10_000).kernel(5, 10, 50)
    for at in range(100, 9_900, 200):
        planted.call("cudaEventQuery", at, 5, tid=9)
    expect(planted.kernel(9_900, 9_910, 50).diagnosis(), "unclear", "makes no CUDA call")


def test_the_work_of_a_graph_is_neither_pythons_fault_nor_known() -> None:
    """One call, many kernels, a microsecond between them."""
    planted = Planted().step(0, 60).graph(*range(20, 820, 4), duration=3)
    expect(planted.diagnosis(), "unclear", "200 kernels of 3.0 µs of a CUDA graph", python=20 / 819)


def test_of_a_graph_the_copies_are_known_and_its_launch_need_not_be() -> None:
    planted = Planted().step(0, 60).graph(20, duration=30)
    planted.copy(5, 1, 50, 2 * 2**30 / (H200.bandwidth * 1e3) / 0.9, "DtoD", 2**30)
    planted.events[-1]["args"]["correlation"] = 99
    expect(planted.diagnosis(), "memory", of_bandwidth=0.9)
    planted = Planted().step(0, 1_000).kernel(5, 10, 900, op=None)
    planted.events[-1]["args"]["graph id"] = 3
    expect(planted.diagnosis(), "unclear", CUDA_graph=0.9, unlaunched=0)


def test_a_pause_is_one_only_if_every_stream_pauses() -> None:
    planted = Planted().step(0, 1_000).kernel(0, 20, 500).kernel(10, 30, 10).kernel(30, 100, 50)
    assert owned(planted) == [("python", 0, 20), ("computing", 20, 520), ("python", 520, 1_000)]


@pytest.mark.parametrize(
    "pause, owner", [(LATENCY - 1, "neither roof"), (LATENCY + 1, "idle, already launched")]
)
def test_a_pause_begins_when_the_last_stream_is_done(pause, owner) -> None:
    planted = Planted().step(0, 700).kernel(0, 20, 500).kernel(10, 30, 10)
    assert (owner, 520, 520 + pause) in owned(planted.kernel(300, 520 + pause, 50))


def test_a_long_pause_before_launched_work_is_not_called_a_slow_kernel() -> None:
    """As in a graph whose kernels wait for a function on the host: 65 ms after its launch."""
    planted = Planted().step(0, 90_000).graph(20, 65_020, 85_000, duration=2_000)
    found = expect(planted.diagnosis(), "unclear", "63,000 µs at a time", pause=63_000)
    assert "kernels" not in found.reason
    assert found.evidence.shares["idle, already launched"] == pytest.approx(0.9, abs=0.01)


def test_work_that_was_launched_long_ago_is_not_the_hosts_fault() -> None:
    """The GPU may be busy with what was launched before the profile began."""
    planted = Planted().step(0, 10_000).kernel(5, 8_000, 500).kernel(20, 8_500, 1_000)
    found = expect(planted.diagnosis(), "unclear", "did not record")
    assert found.evidence.shares["idle, already launched"] == pytest.approx(0.8, abs=0.001)


def test_a_pause_before_work_of_unknown_launch_is_not_the_gpus_own() -> None:
    planted = Planted().step(0, 200).kernel(5, 30, 70).add("kernel", "unasked", 150, 20, tid=20)
    assert ("python", 100, 150) in owned(planted)


def test_a_launch_under_way_when_the_gpu_falls_idle_comes_late() -> None:
    planted = Planted().step(0, 200).kernel(5, 30, 70).kernel(98, 110, 20)
    assert [b - a for owner, a, b in owned(planted) if owner == "python"] == [30, 10, 70]


def test_owners_cover_the_steps_without_overlap() -> None:
    """The pause of 5 µs before the second kernel is the GPU's own: it had been launched."""
    planted = Planted().step(0, 500).kernel(5, 30, 40).kernel(20, 75, 10)
    found = owned(planted.copy(100, 50, 120, 60, "DtoH", 9))
    assert found[0][1] == 0 and found[-1][2] == 500
    assert all(a[2] == b[1] for a, b in pairwise(found))
    assert [(owner, b - a) for owner, a, b in found] == [
        *[("python", 30), ("computing", 40), ("neither roof", 5), ("computing", 10)],
        *[("python", 35), ("copying", 60), ("python", 320)],
    ]


def test_shares_add_up_whatever_the_trace() -> None:
    generator = random.Random(0)
    for case in range(20):
        planted = Planted()
        for step in range(3):
            planted.step(5_000 * step, generator.uniform(3_000, 5_000))
        for _ in range(60):
            at, later = generator.uniform(0, 15_000), generator.uniform(0, 3_000)
            choice = generator.randrange(4)
            if choice == 0:
                planted.copy(at, later / 2, at + later, 200, "HtoD", 2**20)
            elif choice == 1:
                planted.step(at, later, "data")
            else:
                planted.kernel(at, at + later, generator.uniform(1, 400), op=None)
        found = examine(planted.trace())
        assert sum(found.shares.values()) == pytest.approx(1), case
        assert sum(found.host.values()) == pytest.approx(1), case
        assert min(found.shares.values()) >= 0 and set(found.shares) == set(OWNERS)


# --- what kernels do -----------------------------------------------------------------------------


def test_operators_of_unknown_size_do_not_blur_what_the_others_reach() -> None:
    planted = Planted().step(0, 300).elementwise(10, 0.9)
    planted.kernel(20, planted.end, 100, op="aten::_foreach_add_", **{"Input Dims": [[], []]})
    found = planted.product(30, 0.7, "c10::Half", H200.fp16).diagnosis()
    expect(found, "unclear", of_bandwidth=0.9, of_peak=0.7, products=0.363, neither_roof=0.18)


def test_kernels_of_one_operator_share_its_bytes() -> None:
    planted = Planted().step(0, 10).elementwise(5, 0.9)
    link = {"correlation": planted.count, "External id": planted.count, "stream": 20}
    planted.add("kernel", "as long again", planted.end, planted.end - 10, tid=20, **link)
    expect(planted.diagnosis(), "memory", of_bandwidth=0.45)


def test_a_set_moves_its_bytes_once_and_is_no_kernel() -> None:
    size, took = 2**30, 2**30 / (H200.bandwidth * 1e3) / 0.8
    planted = Planted().step(0, 10).add("cuda_runtime", "cudaMemsetAsync", 1, 2, correlation=99)
    args = {"correlation": 99, "stream": 20, "bytes": size}
    planted.add("gpu_memset", "Memset (Device)", 5, took, tid=20, **args)
    found = planted.kernel(5, 5 + took, 30, op=None).diagnosis()
    expect(found, "memory", of_bandwidth=0.8, kernels=1, kernel=30)


@pytest.mark.parametrize("of_roof, bound", [(2.5 * NEAR, "memory"), (0.75 * NEAR, "unclear")])
def test_copies_inside_the_gpu_move_their_bytes_twice(of_roof, bound) -> None:
    took = 2 * 2**30 / (H200.bandwidth * 1e3) / of_roof
    copied = Planted().step(0, 10).copy(1, 2, 5, took, "DtoD", 2**30)
    expect(copied.diagnosis(), bound, unlaunched=0)


def test_more_than_a_roof_is_neither_called_bound_nor_averaged() -> None:
    """The cache of a language model: all of it is an argument, and a few rows are written."""
    planted = Planted().step(0, 1_000)
    shapes = {"Input Dims": [[2**30, 64], [16]], "Input type": ["float", "long int"]}
    planted.kernel(5, 10, 700, op="aten::embedding", **shapes).elementwise(8, 1.0)
    warning = "76% of the kernels' time is in operators that would need more than 100% of a roof"
    expect(planted.diagnosis(), "unclear", warning, of_bandwidth=1, beyond=0.758)


def test_a_kernel_that_nobody_launched_is_not_called_narrow_without_doubt() -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 900, "my_kernel", op=None)
    expect(planted.diagnosis(), "unclear", "nothing is known of their work")


@pytest.mark.parametrize("duration", [0.2, 0.9])
def test_kernels_of_less_than_a_microsecond_are_kernels(duration) -> None:
    planted = Planted().step(0, 100).kernel(5, 10, duration).kernel(30, 40, duration)
    expect(planted.diagnosis(), "python", kernel=duration)


@pytest.mark.parametrize("scale", [0, 1e-3])
def test_kernels_that_take_no_time_are_not_called_short(scale) -> None:
    """Durations in ms, or zero."""
    planted = host_bound().without("user_annotation")
    for event in planted.events:
        event |= {"dur": event["dur"] * scale}
    with pytest.raises(ValueError, match="are the times of the file in µs"):
        planted.diagnosis()


SHAPES = cases("test_shapes_that_no_operator_has_tell_of_no_work")
SHAPES = SHAPES | {"more than a number holds": ("aten::mm", {"Input Dims": [[2**62] * 40] * 2})}


@pytest.mark.parametrize("op, shapes", SHAPES.values(), ids=SHAPES)
def test_shapes_that_no_operator_has_tell_of_no_work(op, shapes) -> None:
    types = {"Input type": ["float"] * 3}
    planted = Planted().step(0, 1_000).kernel(5, 10, 900, op=op, **types | shapes)
    assert expect(planted.diagnosis(), "unclear").evidence.products in (0, 1)


# --- what the host does --------------------------------------------------------------------------


@pytest.mark.parametrize("waits", ["cudaStreamSynchronize", "cudaMemcpyAsync"])
def test_what_the_host_does(waits) -> None:
    planted = Planted().step(0, 1_000).step(0, 200, "data").add("cuda_runtime", waits, 100, 400)
    planted.add("cpu_op", "aten::mul", 450, 250).kernel(700, 710, 290, op=None)
    expected = {"loader": 0.2, "blocked": 0.3, "operators": 0.203, "nothing": 0.297}
    assert examine(planted.trace()).host == pytest.approx(expected)


def silent() -> Planted:
    return Planted().step(0, 10_000).kernel(5, 10, 50).kernel(9_900, 9_910, 50)


def test_stacks_or_else_operators_split_a_silent_host() -> None:
    planted = silent().add("python_function", "train.py(9): parse", 1_000, 6_000)
    found = expect(planted.diagnosis(), "unclear", "it is in train.py(9): parse 61%")
    assert found.evidence.silent_in == pytest.approx({"train.py(9): parse": 0.6066}, rel=0.01)
    assert "with_stack" not in found.next and "with_stack=True" in silent().diagnosis().next
    sorting = silent().add("cpu_op", "aten::sort", 100, 9_000)
    expect(sorting.diagnosis(), "unclear", "it is in aten::sort 91%")


def test_copies_to_the_host_are_not_called_data_for_the_gpu() -> None:
    planted = Planted().step(0, 1_000).kernel(5, 10, 90).copy(20, 900, 110, 800, "DtoH", 2**20)
    expect(planted.diagnosis(), "data", "80% for copies to the host")


@pytest.mark.parametrize(
    "missing",
    [
        *[("cuda_runtime",), ("cuda_runtime", "cpu_op")],
        ("cuda_runtime", "cpu_op", "user_annotation"),
    ],
)
def test_without_calls_nothing_is_said_of_the_host(missing) -> None:
    planted = host_bound()
    if "user_annotation" not in missing:
        planted.kernel(5_000, 5_010, 3, op=None)  # after the steps
    found = planted.without(*missing).diagnosis()
    says = ("no CUDA calls that would say why", "ProfilerActivity.CPU", "no launch in the file")
    assert expect(found, "unclear", *says).evidence.kernels * found.evidence.steps == 60


@pytest.mark.parametrize("unasked, doubtful", [(1, False), (2, True)])
def test_one_launch_in_twenty_may_be_missing(unasked, doubtful) -> None:
    planted = Planted().step(0, 1_000)
    for i in range(20 - unasked):
        planted.kernel(20 * i, 20 * i + 10, 5)
    for i in range(unasked):
        planted.add("kernel", "unasked", 500 + 20 * i, 5, tid=20, stream=20)
    for i in range(5):  # launched before the profile began: no launch need be there
        planted.add("kernel", "before", 10 * i - 100, 5, tid=20, stream=20)
    said = warnings_about(examine(planted.trace(), gpu=H200))
    assert any("has no launch in the file" in text for text in said) is doubtful


def test_work_that_begins_before_its_launch_is_doubted() -> None:
    planted = host_bound()
    for event in planted.events:
        event["ts"] -= 20 * (event["cat"] == "kernel")
    said = warnings_about(planted.diagnosis().evidence)
    assert said[0].startswith("100% of the GPU's work begins before its launch")


# --- which steps ---------------------------------------------------------------------------------


def test_only_work_in_the_steps_is_counted() -> None:
    planted = Planted()
    for begin in (-500, 10, 60, 5_000):
        planted.kernel(begin, begin + 10, 30)
    found = planted.step(0, 50).step(50, 50).diagnosis()
    expect(found, "unclear", steps=2, kernels=1, kernel=30, wall=50)
    planted = Planted().step(0, 100).kernel(5, 10, 40).kernel(20, 52, 30).kernel(500, 900, 30)
    expect(planted.diagnosis(), "unclear", pause=2)


def test_work_of_the_steps_before_is_not_counted() -> None:
    """The host is two steps ahead when recording begins: each step takes the GPU 100 µs."""
    planted = Planted()
    for number in range(5):
        asked = 10 + 30 * number
        if number >= 2:  # the first two were launched before
            planted.step(asked - 5, 25)
        planted.kernel(asked, 40 + 100 * number, 100)
    expect(planted.diagnosis(), "unclear", steps=3, kernels=1, wall=100, busy=1)


@pytest.mark.parametrize("begin, end", [(50, 80), (-300, 900)])
def test_work_launched_before_that_runs_beside_a_step_takes_none_of_it(begin, end) -> None:
    """On another stream: it begins after the step's own work, or outlasts the step."""
    planted = Planted().kernel(-400, begin, end - begin)
    planted.step(0, 200).kernel(5, 10, 20).kernel(90, 100, 20)
    assert examine(planted.trace()).wall == pytest.approx(200)


def test_steps_of_the_schedule_come_before_ranges() -> None:
    planted = Planted()
    for i in (7, 8):
        planted.step(1_000 * i, 990, f"ProfilerStep#{i}").step(1_000 * i, 90)
        planted.kernel(1_000 * i + 5, 1_000 * i + 10, 400)
    trace = planted.trace()
    expect(diagnose(trace), "python", steps=len(trace.steps), wall=995)
    assert len(trace.steps) == 2


def test_only_ranges_called_step_are_steps() -> None:
    planted = Planted().step(0, 1_000, "steps").step(100, 300).kernel(110, 120, 100)
    expect(planted.diagnosis(), "python", steps=1, wall=300)


def test_steps_may_overlap_a_little() -> None:
    planted = Planted().step(0, 1_000).step(999, 1_000).kernel(5, 10, 3).kernel(1_500, 1_510, 3)
    expect(planted.diagnosis(), "unclear", steps=2)


def test_steps_within_steps_and_an_empty_last_one_are_not_counted() -> None:
    known = host_bound().diagnosis()
    assert warnings_about(known.evidence) == []
    # What lies between the last ``profiler.step()`` and the end of the profile.
    assert host_bound().step(1_995, 20).diagnosis() == known
    planted = host_bound().step(10, 950).step(1_010, 400).step(1_500, 400)
    found = planted.step(300, 0).step(500, 900).diagnosis()
    assert found.reason == known.reason and found.evidence.steps == 2
    assert warnings_about(found.evidence)[0].startswith("5 of the 7 ranges that mark steps")


def test_without_steps_the_whole_trace_is_one() -> None:
    planted = Planted().kernel(0, 10, 100).kernel(500, 510, 90)
    found = expect(planted.diagnosis(), "python", "no steps marked", steps=1, wall=600)
    assert "a step of" not in found.reason
    planted = Planted().add("kernel", "launched before", 0, 80, tid=20, stream=20)
    expect(planted.diagnosis(), "unclear", wall=80, busy=1)


NOTHING = {
    "on the CPU": (Planted().step(0, 1_000).add("cpu_op", "aten::mm", 10, 900), "GPU did nothing"),
    "before": (Planted().kernel(0, 10, 100).step(1_000, 500), "but did before or after"),
    "no kernels": (host_bound().without("kernel"), "calls CUDA, but the profile holds no kernels"),
    "other": (
        host_bound().without("kernel", "cuda_runtime").add("mtia_ccp_events", "x", 5, 9),
        "an accelerator which this tool does not read: mtia_ccp_events",
    ),
    "counters": (
        Planted().step(0, 9).add("cuda_profiler_range", "x", 5, 9),
        "ranges of CUPTI's counters, no kernels",
    ),
}


@pytest.mark.parametrize("planted, says", NOTHING.values(), ids=NOTHING)
def test_steps_without_gpu_work_are_an_error_that_says_why(planted, says) -> None:
    with pytest.raises(ValueError, match=says):
        planted.diagnosis()


def test_an_empty_trace_is_an_error() -> None:
    with pytest.raises(ValueError, match="the GPU did nothing"):
        diagnose(Trace())


# --- what the profiler costs ---------------------------------------------------------------------


@pytest.fixture
def fed() -> Trace:
    """Three steps of 10,000 µs: 6,000 in a loader, 2,000 for Python, 2,000 of the GPU."""
    planted = Planted()
    for begin in (0, 10_000, 20_000):
        planted.step(begin, 10_000).step(begin, 6_000, "data")
        for i in range(20):  # launches close enough to each other that the host is not silent
            planted.call("cudaPeekAtLastError", begin + 6_000 + 100 * i, 2)
        planted.kernel(begin + 7_990, begin + 8_000, 2_000)
    return planted.trace()


def test_what_the_profiler_added_comes_off_python_alone_if_python_can_bear_it(fed) -> None:
    """Python would have taken 600 µs, less than a third; and no profiler speeds it up."""
    seen = diagnose(fed, wall=8_600)
    seen = expect(seen, "data", python=600 / 8_600, data=6_000 / 8_600).evidence
    assert warnings_about(seen) == []
    assert examine(fed, wall=12_000) == examine(fed)


@pytest.mark.parametrize("wall", [8_400, 6_000, 3_000])
def test_what_python_cannot_have_been_slowed_by_slowed_the_loader_too(fed, wall) -> None:
    """No share is of a step longer than the true one, and none is nothing beside the others."""
    rest = 1 - 2_000 / wall
    found = diagnose(fed, wall=wall)
    bound = "data" if wall >= 6_000 else "unclear"
    seen = expect(found, bound, wall=wall, busy=1 - rest, data=0.75 * rest, python=rest / 4)
    assert f"of a step of {wall:,} µs" in found.reason
    (said,) = warnings_about(seen.evidence)
    assert f"added {10_000 - wall:,} µs to a step" in said and "stopwatch" in said


def test_shares_of_a_step_that_is_too_long_say_so(fed) -> None:
    """Kernels can be slower under the profiler, too; nothing tells how long they take without."""
    said = "shares are of 2,000 µs, not of the 1,500 µs"
    expect(diagnose(fed, wall=1_500), "unclear", said, wall=2_000, data=0)


def test_a_few_percent_between_two_measurements_are_no_warning() -> None:
    trace = Planted().step(0, 1_000).kernel(2, 10, 990).trace()
    assert warnings_about(examine(trace, wall=960)) == []
    assert warnings_about(examine(trace, wall=900)) != []


@pytest.mark.parametrize("added, python, data", [(300, 100, 400), (304, 248, 248)])
def test_python_is_believed_to_have_been_four_times_slower(added, python, data) -> None:
    time = {"python": 400.0, "data": 400.0, "silent host": 0.0, "computing": 1_200.0}
    found, said = without_profiler(time, 1, 2_000 - added)
    assert found == pytest.approx(time | {"python": python, "data": data}, abs=0.5)
    assert bool(said) is (added > 300)


def test_a_host_that_does_nothing_cannot_have_been_slowed() -> None:
    time = {"python": 0.0, "data": 0.0, "silent host": 0.0, "computing": 1_000.0}
    found, (said,) = without_profiler(time, 1, 800.0)
    assert found == time and "it slowed more than the host" in said


@pytest.mark.parametrize("data, guessed", [(170.0, True), (150.0, False), (50.0, False)])
def test_it_is_a_guess_if_a_loader_has_a_part_that_is_more_than_noise(data, guessed) -> None:
    """Of three steps that took 1,000 µs each without the profiler: 5% of them are 150 µs."""
    time = {"python": 300.0, "data": data, "silent host": 0.0, "computing": 2_940.0 - data}
    _, said = without_profiler(time, 3, 1_000.0)
    assert len(said) == guessed
    assert not said or "added 80 µs to a step, too much for Python's 100 µs alone" in said[0]


# --- which GPU -----------------------------------------------------------------------------------


def test_the_gpu_that_is_named_counts_or_else_the_traces_own() -> None:
    """What is far from an H200's bandwidth can be all that a T4 has."""
    of_roof = 0.9 * T4.bandwidth / H200.bandwidth
    on_h200, on_t4, unknown = (
        Planted(device).step(0, 100).elementwise(5, of_roof)
        for device in ("NVIDIA H200", "Tesla T4", "NVIDIA Imaginary 1")
    )
    expect(on_h200.diagnosis(), "unclear")
    expect(on_t4.diagnosis(), "memory")
    assert expect(on_h200.diagnosis(gpu=T4), "memory").evidence.device == "NVIDIA H200"
    expect(unknown.diagnosis(), "unclear", "utils.gpus does not list NVIDIA Imaginary 1", "--gpu")
    expect(unknown.diagnosis(gpu=T4), "memory")
    unnamed = Planted(None).step(0, 100).kernel(5, 10, 90).trace()
    assert "does not name its GPU" in examine(unnamed).blind
    assert examine(unnamed, gpu=T4).blind == ""


def test_kernels_without_shapes_need_them_and_a_host_that_waits_does_not() -> None:
    planted = unshaped(Planted().step(0, 100).kernel(5, 10, 2_000))
    expect(planted.diagnosis(), "unclear", "record_shapes=True")
    planted = unshaped(Planted("NVIDIA Imaginary 1").step(0, 1_000).kernel(900, 910, 50))
    expect(planted.diagnosis(), "python", "for the host")


def test_a_second_gpu_that_works_is_noticed() -> None:
    """One process: what the other GPU does must not count as this one's."""
    planted = host_bound()
    for event in planted.events:
        event["args"]["device"] = 0
    for at in range(0, 1_900, 100):
        planted.kernel(at + 5, at + 10, 99)
        planted.events[-1]["args"]["device"] = 1
    trace = planted.trace()
    expect(diagnose(trace, device=0), "python", "the GPU waits 91% of a step of 995 µs")
    assert warnings_about(diagnose(trace.of_gpu(0)).evidence) == []
    said = "several GPUs in this file (0, 1): this is GPU 1, the one that works most"
    assert expect(diagnose(trace), "unclear", said).evidence.busy > 0.9
    with pytest.raises(ValueError, match="GPU 2 did nothing here; those that worked: 0, 1"):
        diagnose(trace, device=2)
