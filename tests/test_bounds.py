"""The classifier on traces that are planted here, event by event."""

import json
import random
import subprocess
import sys
from itertools import pairwise

import pytest

from notebooks import BOOK, ROOT
from planted import Planted
from utils.bounds import BOUNDS, MAJORITY, OWNERS, diagnose, examine, warnings_about
from utils.bounds.command import main
from utils.bounds.operator_cost import operations, traffic
from utils.bounds.overhead import without_profiler
from utils.bounds.owners import LATENCY, SILENCE, owners, sweep
from utils.bounds.roofline import NEAR, least_time
from utils.bounds.verdict import NEXT
from utils.gpus import lookup
from utils.profile import Span, Trace, TraceError, Work, load

H200, T4 = lookup("NVIDIA H200"), lookup("Tesla T4")
SECOND = 1e6  # in µs


def elementwise(planted: Planted, asked: float, begin: float, of_roof: float, mib: int = 512):
    """A kernel that reads and writes ``mib``, at part ``of_roof`` of the bandwidth; its end."""
    dims = [[mib * 2**20 // 4]]
    took = 2 * mib * 2**20 / (H200.bandwidth * 1e9) * SECOND / of_roof
    planted.kernel(asked, begin, took, **{"Input Dims": dims, "Input type": ["float"]})
    return begin + took


def product(planted: Planted, asked: float, begin: float, of_roof: float, kind: str, **more):
    """A product of two 4096 x 4096 matrices, at part ``of_roof`` of the peak; its end."""
    peak = {
        "c10::BFloat16": H200.bf16,
        "c10::Half": H200.fp16,
        "float": H200.tf32 if "name" in more else H200.fp32,
    }[kind]
    took = 2 * 4096**3 / (peak * 1e12) * SECOND / of_roof
    shapes = {"Input Dims": [[4096, 4096]] * 2, "Input type": [kind] * 2}
    planted.kernel(asked, begin, took, op="aten::mm", **shapes, **more)
    return begin + took


@pytest.fixture
def planted() -> Planted:
    return Planted()


# --- each bound, planted -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "range_name", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data"]
)
def test_waiting_for_a_loader(planted, tmp_path, range_name) -> None:
    for i in range(3):
        planted.step(10_000 * i, 9_990).step(10_000 * i + 10, 8_000, range_name)
        planted.kernel(10_000 * i + 8_100, 10_000 * i + 8_110, 1_500)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "data"
    assert found.evidence.shares["data"] == pytest.approx(0.8, abs=0.02)
    assert found.evidence.host["loader"] == pytest.approx(0.8, abs=0.02)
    assert found.evidence.steps == 3 and found.evidence.wall == pytest.approx(10_000, rel=0.01)


def test_a_loader_that_works_beside_the_gpu_costs_nothing(planted, tmp_path) -> None:
    planted.step(0, 9_000)
    end = elementwise(planted, 5, 10, of_roof=0.05)
    planted.step(100, end - 200, "data")
    assert diagnose(planted.trace(tmp_path)).evidence.shares["data"] < 0.01


def test_waiting_for_a_copy_from_the_host(planted, tmp_path) -> None:
    planted.step(0, 10_000).copy(100, 8_000, 2_000, 6_000, "HtoD", 2**28).kernel(8_200, 8_210, 900)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "data"
    assert found.evidence.exposed_copies == pytest.approx(0.6, abs=0.01)
    # The 2 ms in which the call does something else are data's as well.
    assert found.evidence.shares["data"] == pytest.approx(0.80, abs=0.005)


@pytest.mark.parametrize("name", ["aten::pin_memory", "aten::_pin_memory"])
def test_waiting_for_pinning(planted, tmp_path, name) -> None:
    planted.step(0, 1_000).add("cpu_op", name, 5, 800).kernel(820, 830, 100)
    assert diagnose(planted.trace(tmp_path)).bound == "data"


def test_waiting_for_python(planted, tmp_path) -> None:
    planted.step(0, 3_000)
    for at in range(0, 3_000, 30):
        planted.kernel(at, at + 8, 3)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "python" and "100 kernels of 3.0 µs" in found.reason
    assert found.evidence.shares["python"] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("of_roof, bound", [(0.9, "memory"), (NEAR / 2, "unclear")])
def test_waiting_for_memory(planted, tmp_path, of_roof, bound) -> None:
    planted.step(0, 300)
    begin = 10.0
    for i in range(20):
        begin = elementwise(planted, 10 * i, begin, of_roof)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == bound, found
    assert found.evidence.of_bandwidth == pytest.approx(of_roof, rel=0.01)


def test_operators_of_unknown_size_do_not_blur_what_the_others_reach(planted, tmp_path) -> None:
    planted.step(0, 300)
    end = elementwise(planted, 10, 20, 0.9)
    planted.kernel(20, end, 100, op="aten::_foreach_add_", **{"Input Dims": [[], []]})
    product(planted, 30, end + 100, 0.7, "c10::Half")
    found = examine(planted.trace(tmp_path), gpu=H200)
    assert found.of_bandwidth == pytest.approx(0.9, rel=0.01)
    assert found.of_peak == pytest.approx(0.7, rel=0.01)
    assert 0.2 < found.products < 0.6 and 0.1 < found.shares["neither roof"] < 0.4


@pytest.mark.parametrize(
    "kind, kernel",
    [
        ("c10::BFloat16", {}),
        ("c10::Half", {}),
        ("float", {"name": "sm90_xmma_gemm_tf32f32"}),
        ("float", {}),
    ],
)
def test_waiting_for_arithmetic(planted, tmp_path, kind, kernel) -> None:
    """Each precision against its own peak: float32 without tensor cores is bound as well."""
    planted.step(0, 300)
    begin = 10.0
    for i in range(20):
        begin = product(planted, 10 * i, begin, 0.7, kind, **kernel)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "arithmetic", found
    assert found.evidence.of_peak == pytest.approx(0.7, rel=0.01)
    assert found.evidence.products == pytest.approx(1)


def test_a_product_with_one_row_is_bound_by_memory(planted, tmp_path) -> None:
    planted.step(0, 300)
    for i in range(10):
        shapes = {"Input Dims": [[1, 16384], [16384, 16384]], "Input type": ["c10::BFloat16"] * 2}
        planted.kernel(10 * i, 10 + 120 * i, 119, op="aten::mm", **shapes)
    assert diagnose(planted.trace(tmp_path)).bound == "memory"


def test_waiting_for_other_gpus(planted, tmp_path) -> None:
    planted.step(0, 100)
    end = elementwise(planted, 5, 10, 0.9)
    planted.kernel(20, end, 3 * (end - 10), "ncclDevKernel_AllReduce_Sum_f32_RING_LL", op=None)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "other GPUs"
    assert found.evidence.exposed_nccl == pytest.approx(0.75, abs=0.02)


def test_copies_between_gpus_are_communication(planted, tmp_path) -> None:
    """As nn.DataParallel makes them."""
    planted.step(0, 1_000).copy(5, 5, 15, 800, "PtoP", 2**30).kernel(20, 816, 90)
    assert diagnose(planted.trace(tmp_path)).bound == "other GPUs"


def test_communication_beside_computing_costs_nothing(planted, tmp_path) -> None:
    planted.step(0, 100)
    end = elementwise(planted, 5, 10, 0.6)
    planted.kernel(20, 15, end - 20, "ncclDevKernel_AllReduce", op=None)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "memory" and found.evidence.exposed_nccl == 0


# --- what is no bound ----------------------------------------------------------------------------


def test_half_and_half_is_unclear(planted, tmp_path) -> None:
    planted.step(0, 1_000).step(0, 480, "data").kernel(500, 510, 5)
    elementwise(planted, 515, 520, 2 * 512 * 2**20 / (H200.bandwidth * 1e3) / 470)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear" and found.evidence.largest(1) == "data 48%"
    assert "data" in found.reason and "memory" in found.reason


def test_half_of_the_step_is_enough(planted, tmp_path) -> None:
    planted.step(0, 1_000).step(0, 500, "data").kernel(510, 600, 50)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "data" and found.evidence.shares["data"] == 0.5


@pytest.mark.parametrize("silence, bound", [(SILENCE + 100, "unclear"), (SILENCE - 200, "python")])
def test_a_host_that_falls_silent_is_not_called_slow_to_launch(
    planted, tmp_path, silence, bound
) -> None:
    planted.step(0, 4 * silence)
    for i in range(4):
        planted.kernel(silence * i, silence * i + 10, 5)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == bound
    assert ('"data"' in found.next) == (bound == "unclear")


def test_short_kernels_from_a_full_queue_are_not_pythons_fault(planted, tmp_path) -> None:
    """As in a CUDA graph: one call, many kernels, a microsecond between them."""
    planted.step(0, 60).add("cuda_runtime", "cudaGraphLaunch", 5, 10, correlation=99)
    for i in range(200):
        args = {"correlation": 99, "stream": 20}
        planted.add("kernel", "tiny", 20 + 4 * i, 2, tid=20, **args)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear" and "CUDA graph" in found.reason
    assert found.evidence.shares["python"] < 0.05


def test_a_pause_is_one_only_if_every_stream_pauses(planted, tmp_path) -> None:
    planted.step(0, 1_000).kernel(0, 20, 500).kernel(10, 30, 10).kernel(30, 100, 50)
    assert diagnose(planted.trace(tmp_path)).evidence.shares["python"] > 0.45
    assert not any(owner == "neither roof" for owner, _, _ in owners(planted.trace(tmp_path)))


@pytest.mark.parametrize(
    "pause, owner", [(LATENCY - 1, "neither roof"), (LATENCY + 1, "idle, already launched")]
)
def test_a_pause_begins_when_the_last_stream_is_done(planted, tmp_path, pause, owner) -> None:
    planted.step(0, 700).kernel(0, 20, 500).kernel(10, 30, 10).kernel(300, 520 + pause, 50)
    assert (owner, 520, round(520 + pause)) in [
        (owner, round(a), round(b)) for owner, a, b in owners(planted.trace(tmp_path))
    ]


def test_a_long_pause_before_launched_work_is_not_called_a_slow_kernel(planted, tmp_path) -> None:
    """As in a graph whose kernels wait for a function on the host: 65 ms after its launch."""
    planted.step(0, 90_000).add("cuda_runtime", "cudaGraphLaunch", 5, 10, correlation=99)
    for begin in (20, 65_020, 85_000):
        args = {"correlation": 99, "stream": 20}
        planted.add("kernel", "work", begin, 2_000, tid=20, **args)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear"
    assert found.evidence.shares["idle, already launched"] == pytest.approx(0.9, abs=0.05)
    assert found.evidence.pause == pytest.approx(63_000)
    assert "63,000 µs at a time" in found.reason and "kernels" not in found.reason


def test_kernels_of_one_operator_share_its_bytes(planted, tmp_path) -> None:
    planted.step(0, 10)
    end = elementwise(planted, 5, 10, of_roof=0.9)
    link = {"correlation": planted.count, "External id": planted.count, "stream": 20}
    planted.add("kernel", "as long again", end, end - 10, tid=20, **link)
    assert examine(planted.trace(tmp_path)).of_bandwidth == pytest.approx(0.45, rel=0.01)


def test_a_pause_before_work_of_unknown_launch_is_not_the_gpus_own(planted, tmp_path) -> None:
    planted.step(0, 200).kernel(5, 30, 70).add("kernel", "unasked", 150, 20, tid=20, stream=20)
    assert not any(owner == "neither roof" for owner, _, _ in owners(planted.trace(tmp_path)))


def test_a_launch_under_way_when_the_gpu_falls_idle_comes_late(planted, tmp_path) -> None:
    planted.step(0, 200).kernel(5, 30, 70).kernel(98, 110, 20)  # from 30 to 100, and from 110 on
    said = [(owner, round(b - a)) for owner, a, b in owners(planted.trace(tmp_path))]
    expected = [("python", 30), ("computing", 70), ("python", 10), ("computing", 20)]
    assert said == [*expected, ("python", 70)]


def test_a_set_moves_its_bytes_once_and_is_no_kernel(planted, tmp_path) -> None:
    size, took = 2**30, 2**30 / (H200.bandwidth * 1e3) / 0.8
    planted.step(0, 10).add("cuda_runtime", "cudaMemsetAsync", 1, 2, correlation=99)
    args = {"correlation": 99, "stream": 20, "bytes": size}
    planted.add("gpu_memset", "Memset (Device)", 5, took, tid=20, **args)
    planted.kernel(5, 5 + took, 30, op=None)
    found = examine(planted.trace(tmp_path))
    assert found.of_bandwidth == pytest.approx(0.8, rel=0.01)
    assert (found.kernels, found.kernel) == (1, pytest.approx(30))


def test_copies_inside_the_gpu_move_their_bytes_twice(tmp_path) -> None:
    size = 2**30
    for of_roof, bound in ((2.5 * NEAR, "memory"), (0.75 * NEAR, "unclear")):
        took = 2 * size / (H200.bandwidth * 1e3) / of_roof
        copied = Planted().step(0, 10).copy(1, 2, 5, took, "DtoD", size)
        assert diagnose(copied.trace(tmp_path)).bound == bound


@pytest.mark.parametrize("waits", ["cudaStreamSynchronize", "cudaMemcpyAsync"])
def test_what_the_host_does(planted, tmp_path, waits) -> None:
    planted.step(0, 1_000).step(0, 200, "data").add("cuda_runtime", waits, 100, 400)
    planted.add("cpu_op", "aten::mul", 450, 250).kernel(700, 710, 290, op=None)
    host = examine(planted.trace(tmp_path)).host
    expected = {"loader": 0.2, "blocked": 0.3, "operators": 0.203, "nothing": 0.297}
    assert host == pytest.approx(expected)


def test_only_work_in_the_steps_is_counted(planted, tmp_path) -> None:
    for begin in (-500, 10, 60, 5_000):
        planted.kernel(begin, begin + 10, 30)
    planted.step(0, 50).step(50, 50)
    found = examine(planted.trace(tmp_path))
    assert (found.steps, found.kernels, found.kernel) == (2, 1, pytest.approx(30))
    assert found.wall == pytest.approx(50)


def test_a_pause_after_the_steps_is_none_of_theirs(planted, tmp_path) -> None:
    planted.step(0, 100).kernel(5, 10, 40).kernel(20, 52, 30).kernel(500, 900, 30)
    assert examine(planted.trace(tmp_path)).pause == pytest.approx(2)


@pytest.mark.parametrize("unasked, doubtful", [(1, False), (2, True)])
def test_one_launch_in_twenty_may_be_missing(planted, tmp_path, unasked, doubtful) -> None:
    planted.step(0, 1_000)
    for i in range(20 - unasked):
        planted.kernel(20 * i, 20 * i + 10, 5)
    for i in range(unasked):
        planted.add("kernel", "unasked", 500 + 20 * i, 5, tid=20, stream=20)
    said = warnings_about(examine(planted.trace(tmp_path), gpu=H200))
    assert any("has no launch in the file" in text for text in said) is doubtful


@pytest.mark.parametrize("duration", [0.2, 0.9])
def test_kernels_of_less_than_a_microsecond_are_kernels(planted, tmp_path, duration) -> None:
    planted.step(0, 100).kernel(5, 10, duration).kernel(30, 40, duration)
    assert examine(planted.trace(tmp_path)).kernel == pytest.approx(duration)


def test_shares_add_up_whatever_the_trace(tmp_path) -> None:
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
        found = examine(planted.trace(tmp_path), gpu=H200)
        assert sum(found.shares.values()) == pytest.approx(1), case
        assert sum(found.host.values()) == pytest.approx(1), case
        assert min(found.shares.values()) >= 0 and set(found.shares) == set(OWNERS)


# --- what the profiler costs, what it was not told -----------------------------------------------


def test_the_time_without_the_profiler_takes_its_cost_off_python(planted, tmp_path) -> None:
    for i in range(10):  # 250 µs of GPU in 600 µs: under the profiler the host is too slow
        planted.step(600 * i, 599)
        elementwise(planted, 600 * i + 300, 600 * i + 310, 0.9)
    trace = planted.trace(tmp_path)
    assert diagnose(trace).bound == "python"
    found = diagnose(trace, wall=260)
    assert found.bound == "memory" and found.evidence.wall == pytest.approx(260, abs=2)
    assert found.evidence.shares["memory"] > 0.9
    assert diagnose(trace, wall=900).evidence == diagnose(trace).evidence  # slower: no correction
    assert examine(trace, wall=1).shares["python"] == 0  # at most all that Python has


@pytest.fixture
def fed(planted, tmp_path) -> Trace:
    """Three steps of 10,000 µs: 6,000 in a loader, 2,000 for Python, 2,000 of the GPU."""
    for begin in (0, 10_000, 20_000):
        planted.step(begin, 10_000).step(begin, 6_000, "data")
        for i in range(20):  # launches close enough to each other that the host is not silent
            asked = begin + 6_000 + 100 * i
            planted.call("cudaPeekAtLastError", asked, 2)
        planted.kernel(begin + 7_990, begin + 8_000, 2_000)
    return planted.trace(tmp_path)


def test_what_the_profiler_added_comes_off_python_alone_if_python_can_bear_it(fed) -> None:
    seen = examine(fed, wall=8_600)  # Python would have taken 600 µs, less than a third
    assert seen.shares["python"] == pytest.approx(600 / 8_600, abs=0.002)
    assert seen.shares["data"] == pytest.approx(6_000 / 8_600, abs=0.002)
    assert warnings_about(seen) == []


@pytest.mark.parametrize("wall", [8_400, 6_000, 3_000])
def test_what_python_cannot_have_been_slowed_by_slowed_the_loader_too(fed, wall) -> None:
    """No share is of a step longer than the true one, and none is nothing beside the others."""
    found = diagnose(fed, wall=wall)
    seen = found.evidence
    assert seen.wall == pytest.approx(wall) and f"of a step of {wall:,} µs" in found.reason
    assert seen.busy == pytest.approx(2_000 / wall)
    assert seen.shares["data"] == pytest.approx(0.75 * (1 - 2_000 / wall), abs=0.002)
    assert seen.shares["python"] == pytest.approx(0.25 * (1 - 2_000 / wall), abs=0.002)
    (said,) = warnings_about(seen)
    assert f"added {10_000 - wall:,} µs to a step" in said and "stopwatch" in said


def test_shares_of_a_step_that_is_too_long_say_so(fed) -> None:
    """Kernels can be slower under the profiler, too; nothing tells how long they take without."""
    seen = examine(fed, wall=1_500)
    assert seen.wall == pytest.approx(2_000) and seen.shares["data"] == 0
    (said,) = warnings_about(seen)
    assert "shares are of 2,000 µs, not of the 1,500 µs" in said


def test_a_few_percent_between_two_measurements_are_no_warning(planted, tmp_path) -> None:
    trace = planted.step(0, 1_000).kernel(2, 10, 990).trace(tmp_path)
    assert warnings_about(examine(trace, gpu=H200, wall=960)) == []
    assert warnings_about(examine(trace, gpu=H200, wall=900)) != []


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


def test_unknown_gpu(tmp_path) -> None:
    planted = Planted("NVIDIA Imaginary 1")
    planted.step(0, 300)
    elementwise(planted, 5, 10, 0.9)
    trace = planted.trace(tmp_path)
    assert diagnose(trace).bound == "unclear" and "Imaginary" in diagnose(trace).reason
    assert diagnose(trace, gpu=H200).bound == "memory"


def test_what_has_no_kernels_to_judge_needs_neither_gpu_nor_shapes(tmp_path) -> None:
    planted = Planted("NVIDIA Imaginary 1").step(0, 1_000).kernel(900, 910, 50)
    for event in planted.events:
        event["args"].pop("Input Dims", None)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "python" and "for the host" in found.reason


def test_the_traces_own_gpu_counts(tmp_path) -> None:
    """What is far from an H200's bandwidth can be all that a T4 has."""
    bounds = {}
    for device in ("NVIDIA H200", "Tesla T4"):
        planted = Planted(device)
        planted.step(0, 100)
        elementwise(planted, 5, 10, of_roof=0.9 * T4.bandwidth / H200.bandwidth)
        bounds[device] = diagnose(planted.trace(tmp_path)).bound
    assert bounds == {"NVIDIA H200": "unclear", "Tesla T4": "memory"}


def test_the_gpu_that_is_named_counts_more_than_the_traces_own(planted, tmp_path) -> None:
    planted.step(0, 100)
    elementwise(planted, 5, 10, of_roof=0.9 * T4.bandwidth / H200.bandwidth)
    trace = planted.trace(tmp_path)
    assert diagnose(trace, gpu=T4).bound == "memory"
    assert diagnose(trace).evidence.device == "NVIDIA H200"
    trace = Planted(None).step(0, 100).kernel(5, 10, 90).trace(tmp_path)
    assert "does not name its GPU" in examine(trace).blind and examine(trace, gpu=T4).blind == ""


def test_without_shapes(planted, tmp_path) -> None:
    planted.step(0, 100).kernel(5, 10, 2_000, **{"Input Dims": None})
    for event in planted.events:
        event["args"].pop("Input Dims", None)
    found = diagnose(planted.trace(tmp_path))
    assert found.bound == "unclear" and "record_shapes=True" in found.reason


def test_steps_of_the_schedule_come_before_ranges(planted, tmp_path) -> None:
    for i in (7, 8):
        planted.step(1_000 * i, 990, f"ProfilerStep#{i}").step(1_000 * i, 90)
        planted.kernel(1_000 * i + 5, 1_000 * i + 10, 400)
    trace = planted.trace(tmp_path)
    found = examine(trace)
    assert found.steps == len(trace.steps) == 2 and found.wall == pytest.approx(995)


def test_only_ranges_called_step_are_steps(planted, tmp_path) -> None:
    planted.step(0, 1_000, "steps").step(100, 300).kernel(110, 120, 100)
    found = examine(planted.trace(tmp_path))
    assert found.steps == 1 and found.wall == pytest.approx(300)


def test_without_steps_the_whole_trace_is_one(planted, tmp_path) -> None:
    planted.kernel(0, 10, 100).kernel(500, 510, 90)
    found = examine(planted.trace(tmp_path))
    assert found.steps == 1 and found.wall == pytest.approx(600)


def test_without_steps_no_launch_need_have_been_recorded(planted, tmp_path) -> None:
    planted.add("kernel", "launched before", 0, 80, tid=20, stream=20)
    found = examine(planted.trace(tmp_path))
    assert found.wall == pytest.approx(80) and found.busy == 1


@pytest.mark.parametrize(
    "kind, size", [("c10::complex<float>", 8), ("long", 8), ("short", 2), ("c10::Float8_e5m2", 1)]
)
def test_kernels_near_their_roof_are_bound_whatever_their_type(
    planted, tmp_path, kind, size
) -> None:
    planted.step(0, 10)
    took = 2 * 2**27 * size / (H200.bandwidth * 1e3) / 0.9
    planted.kernel(5, 10, took, **{"Input Dims": [[2**27]], "Input type": [kind]})
    found = examine(planted.trace(tmp_path))
    assert found.of_bandwidth == pytest.approx(0.9) and found.shares["memory"] > 0.8


def test_more_than_all_of_a_roof_is_a_warning(planted, tmp_path) -> None:
    """A few rows of a table: the profile has the table."""
    planted.step(0, 1_000)
    shapes = {"Input Dims": [[2**30, 64], [16]], "Input type": ["float", "long int"]}
    planted.kernel(5, 10, 900, op="aten::embedding", **shapes)
    seen = examine(planted.trace(tmp_path))
    assert seen.beyond == 1 and "more than 100% of a roof" in warnings_about(seen)[0]
    planted = Planted().step(0, 300)
    elementwise(planted, 5, 10, of_roof=0.99)
    assert warnings_about(examine(planted.trace(tmp_path))) == []


def test_communication_beside_kernels_is_a_warning(planted, tmp_path) -> None:
    planted.step(0, 1_000)
    planted.kernel(5, 10, 700).kernel(20, 15, 900, "ncclDevKernel_AllReduce", op=None)
    seen = examine(planted.trace(tmp_path))
    assert seen.nccl == pytest.approx(0.9) and "no_sync" in warnings_about(seen)[0]


# --- bad input -----------------------------------------------------------------------------------


def test_a_trace_without_gpu_work_is_an_error_that_says_so(planted, tmp_path) -> None:
    planted.step(0, 1_000).add("cpu_op", "aten::mm", 10, 900, **{"Input Dims": [[4, 4]] * 2})
    with pytest.raises(ValueError, match="the GPU did nothing"):
        diagnose(planted.trace(tmp_path))
    with pytest.raises(ValueError, match="the GPU did nothing"):
        diagnose(Trace())


def test_gpu_work_outside_of_the_steps_does_not_count(planted, tmp_path) -> None:
    planted.kernel(0, 10, 100).step(1_000, 500)
    with pytest.raises(ValueError, match="the GPU did nothing"):
        diagnose(planted.trace(tmp_path))


def test_empty_and_cut_off_files(tmp_path) -> None:
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    (tmp_path / "cut.json").write_text('{"traceEvents": [{"ph": "X"')
    for name in ("empty.json", "cut.json"):
        with pytest.raises(TraceError):
            diagnose(load(tmp_path / name))


@pytest.mark.parametrize(
    "damage", [{}, {"Input Dims": [[]]}, {"Input Dims": [[], [3], [-1]]}, {"Input type": []}]
)
@pytest.mark.parametrize("name", ["mm", "addmm", "cudnn_convolution", "convolution_backward"])
def test_damaged_shapes_do_not_stop_it(planted, tmp_path, name, damage) -> None:
    planted.step(0, 100).kernel(5, 10, 900, op=f"aten::{name}", **damage)
    assert diagnose(planted.trace(tmp_path)).bound == "unclear"


# --- from a terminal ------------------------------------------------------------------------------


def test_command_line(planted, tmp_path, capsys) -> None:
    for i in range(3):
        planted.step(600 * i, 599)
        elementwise(planted, 600 * i + 300, 600 * i + 310, 0.9)
    planted.trace(tmp_path)
    path = str(tmp_path / "planted.json.gz")
    assert main([path]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Python: ") and "owners of the step: Python 58." in out
    assert main([path, "--wall-us", "260"]) == 0
    assert capsys.readouterr().out.startswith("memory: ")


def test_command_line_takes_a_gpu_that_the_table_lists(tmp_path, capsys) -> None:
    planted = Planted("NVIDIA Imaginary 1").step(0, 300)
    elementwise(planted, 5, 10, 0.9)
    planted.trace(tmp_path)
    path = str(tmp_path / "planted.json.gz")
    assert main([path]) == 0 and "--gpu" in capsys.readouterr().out
    assert main([path, "--gpu", "H200 SXM"]) == 0
    assert capsys.readouterr().out.startswith("memory: ")
    with pytest.raises(SystemExit, match=r"^2$"):
        main([path, "--gpu", "H2000"])


def test_command_line_shows_the_evidence(planted, tmp_path, capsys) -> None:
    planted.step(0, 1_000).kernel(390, 400, 50, "ncclDevKernel", op=None)
    planted.copy(395, 5, 450, 100, "DtoH", 9)
    elementwise(planted, 20, product(planted, 15, 550, 0.7, "c10::Half"), 0.9)
    seen = examine(planted.trace(tmp_path))
    assert main([str(tmp_path / "planted.json.gz")]) == 0
    _, shares, host, gpu, kernels, after = capsys.readouterr().out.splitlines()
    assert shares.startswith("owners of the step: Python 4") and " 0.0%" not in shares
    assert host.startswith("host: loader 0.0%, blocked 0.5%, operators and calls ")
    assert after.startswith("next: for Python: ") and "chapter 6.2" in after
    assert gpu == (
        f"GPU: computes {seen.busy:.1%}, only NCCL 5.0%, only copies 10.0%; 2 kernels a step, "
        f"{seen.kernel:.1f} µs each"
    )
    assert kernels == (
        f"kernels: {seen.products:.1%} in products; 70.0% of the peak where that is the roof, "
        "90.0% of the bandwidth where that is"
    )


def test_command_line_with_nothing_to_diagnose(tmp_path, capsys) -> None:
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    cpu = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    (tmp_path / "cpu.json").write_text(json.dumps({"traceEvents": [cpu]}))
    for name in ("cut.json", "cpu.json", "nowhere.json"):
        assert main([str(tmp_path / name)]) == 2
        out, errors = capsys.readouterr()
        assert out == "" and name in errors and len(errors.splitlines()) == 1


def test_command_line_from_a_shell(tmp_path) -> None:
    """Its status and its one sentence, whatever importing torch says."""
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    command = [sys.executable, "-m", "utils.bounds", str(tmp_path / "cut.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stdout == ""
    assert "cut.json" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_command_line_explains_itself(capsys) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    out = capsys.readouterr().out
    assert "usage: python -m utils.bounds" in out and "example:" in out
    assert "export_chrome_trace" in out and "record_shapes=True" in out
    plan = "schedule(wait=10, warmup=40, active=3, repeat=1)"  # the page says why so many
    told = [out, NEXT["slow CUDA call"], (BOOK / "62_bottlenecks.ipynb").read_text()]
    assert all(plan in text for text in told)


def test_the_command_needs_neither_torch_nor_matplotlib() -> None:
    """Importing them takes longer than reading most traces."""
    code = "import sys, utils.bounds.command as c; print({'torch', 'matplotlib'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "set()", done.stderr


# --- the arithmetic ------------------------------------------------------------------------------


def op(name: str, *dims: list, kind: str = "float", concrete: list | None = None) -> Span:
    args = {"Input Dims": [*dims], "Input type": [kind] * len(dims)}
    return Span(
        f"aten::{name}", 0, 1, args=args | ({"Concrete Inputs": concrete} if concrete else {})
    )


@pytest.mark.parametrize(
    "operator, expected",
    [
        (op("mm", [2, 3], [3, 5]), 60),
        (op("addmm", [5], [2, 3], [3, 5]), 60),
        (op("bmm", [7, 2, 3], [7, 3, 5]), 420),
        (op("baddbmm", [7, 2, 5], [7, 2, 3], [7, 3, 5]), 420),
        (op("mv", [2, 3], [3]), 12),
        (op("_scaled_mm", [2, 3], [3, 5]), 60),
        (op("_addmm_activation", [5], [2, 3], [3, 5]), 60),
        (op("_int_mm", [2, 3], [3, 5], kind="signed char"), 60),
        (op("convolution_backward", [8, 16, 5, 5], [8, 4, 9, 9], [16, 4, 3, 3]), 4 * 3200 * 36),
        (op("_flash_attention_forward", *[[2, 64, 4, 16]] * 3), 4 * 2 * 4 * 64 * 64 * 16),
        (op("_flash_attention_backward", *[[2, 64, 4, 16]] * 4), 10 * 2 * 4 * 64 * 64 * 16),
        # 64 queries, 128 keys; before them, in the second, the gradient of what they gave
        (op("_flash_attention_forward", [2, 64, 4, 16], [2, 128, 4, 16]), 4 * 8 * 64 * 128 * 16),
        (
            op("_flash_attention_backward", *[[2, 64, 4, 16]] * 2, [2, 128, 4, 16]),
            10 * 8 * 64 * 128 * 16,
        ),
        (op("mul", [100], [100]), 0),
    ],
)
def test_operations(operator, expected) -> None:
    assert operations(operator) == expected


@pytest.mark.parametrize("mask, parts", [("[True, True, False]", 2), ("[False, True, True]", 1)])
def test_operations_of_the_gradients_that_are_asked_for(mask, parts) -> None:
    dims = [8, 16, 5, 5], [8, 4, 9, 9], [16, 4, 3, 3]
    assert (
        operations(op("convolution_backward", *dims, concrete=["", mask])) == parts * 2 * 3200 * 36
    )


def test_operations_of_a_convolution_with_stride_padding_and_groups() -> None:
    concrete = ["", "", "[1, 2]", "[2, 1]", "[1, 2]", "2"]  # padding, stride, dilation
    conv = op("cudnn_convolution", [8, 4, 9, 12], [16, 2, 3, 3], concrete=concrete)
    high, wide = (9 + 2 - 2 - 1) // 2 + 1, (12 + 4 - 4 - 1) // 1 + 1
    assert (high, wide) == (5, 12)
    assert operations(conv) == 2 * 8 * 16 * high * wide * 2 * 9
    image, kernel, output = 8 * 4 * 9 * 12, 16 * 2 * 9, 8 * 16 * high * wide
    assert traffic(conv) == 4 * (image + kernel + output)


@pytest.mark.parametrize(
    "operator, expected",
    [
        (op("mul", [1000], [1000]), 12_000),
        (op("relu", [1000], kind="c10::BFloat16"), 4_000),
        (op("copy_", [1000], [1000]), 8_000),
        (op("fill_", [1000]), 4_000),
        (op("zero_", [1000]), 4_000),
        (op("neg", [1000], kind="double"), 16_000),
        (op("neg", [1000], kind="long int"), 16_000),
        (op("logical_not", [1000], kind="bool"), 2_000),
        (op("mm", [1, 1000], [1000, 500]), 4 * (1000 + 500_000 + 500)),
        (op("addmm", [500], [20, 1000], [1000, 500]), 4 * (500 + 20_000 + 500_000 + 10_000)),
        (op("bmm", [3, 2, 10], [3, 10, 7]), 4 * (60 + 210 + 42)),
        (op("mv", [20, 30], [30]), 4 * (600 + 30 + 20)),
        (op("mm", [20, 1000], [1000, 500], kind="c10::Half"), 2 * (20_000 + 500_000 + 10_000)),
        (op("sum", [1000]), 4_000),
        (op("mean", [1000]), 4_000),
        (op("linalg_vector_norm", [1000]), 4_000),
        (
            Span(
                "aten::cat", 0, 1, args={"Input Dims": [[[10], [20]]], "Input type": ["TensorList"]}
            ),
            240,
        ),
        (Span("aten::x", 0, 1), 0),
    ],
)
def test_traffic(operator, expected) -> None:
    assert traffic(operator) == expected


MUL_OUT = {"Input Dims": [[1000], [], [1000]], "Input type": ["float", "double", "float"]}
LISTS = {"Input Dims": [[[500], [500]], [[500], [500]], []], "Input type": ["TensorList"] * 2}
ADAM = ["TensorList"] * 4 + ["", "TensorList"] + ["Scalar"] * 7 + ["", ""]


@pytest.mark.parametrize(
    "operator, item, expected",
    [
        # What is written is among the inputs: out=, in place.
        (Span("aten::mul", 0, 1, args=MUL_OUT), 4, 8_000),
        (op("mul_", [1000], [1000]), 4, 12_000),
        (op("mm", [10, 20], [20, 30], [10, 30]), 4, 4 * (200 + 600 + 300)),
        # Lists have the type that the kernel's name says.
        (
            Span(
                "aten::_foreach_add_",
                0,
                1,
                args=LISTS | {"Input type": ["TensorList", "TensorList", "Scalar"]},
            ),
            2,
            6_000,
        ),
        # Adam reads weights, gradients and two moments, and writes all but the gradients.
        (
            Span(
                "aten::_fused_adam_",
                0,
                1,
                args={
                    "Input Dims": [[[1000]]] * 4 + [[], [[]]] + [[]] * 9,
                    "Input type": ADAM,
                },
            ),
            4,
            28_000,
        ),
        # An expanded tensor is one row, and Triton's arguments include what it writes.
        (
            Span(
                "aten::neg",
                0,
                1,
                args={
                    "Input Dims": [[16, 1000]],
                    "Input type": ["float"],
                    "Input Strides": [[0, 1]],
                },
            ),
            4,
            8_000,
        ),
        (
            Span(
                "triton_poi_fused_0",
                0,
                1,
                args={"Input Dims": [[1000], [1000], []], "Input type": ["float", "float", ""]},
            ),
            4,
            8_000,
        ),
    ],
)
def test_traffic_of_what_is_written_in_place_or_out(operator, item, expected) -> None:
    assert traffic(operator, item) == expected


def test_lists_have_the_type_that_their_kernel_names() -> None:
    add = Span(
        "aten::_foreach_mul_",
        0,
        1,
        args={"Input Dims": [[[2**20]], []], "Input type": ["TensorList", "Scalar"]},
    )
    name = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, "
        "at::native::(anonymous namespace)::BinaryOpScalarFunctor<{}, 1, 1, 0>, float>(int)"
    )
    times = {
        kind: least_time(add, [Work(name.format(kind), 0, 1)], H200)[1]
        for kind in ("float", "c10::BFloat16", "double", "c10::complex<float>")
    }
    assert [round(t / times["float"], 9) for t in times.values()] == [1, 0.5, 2, 2]


def test_a_complex_product_is_four_real_ones() -> None:
    real = op("mm", [10, 20], [20, 30])
    assert operations(op("mm", [10, 20], [20, 30], kind="c10::complex<float>")) == 4 * operations(
        real
    )


@pytest.mark.parametrize(
    "gpu, kind, kernel, peak",
    [
        (H200, "float", "ampere_sgemm_128x64", H200.fp32),
        (H200, "float", "sm80_xmma_gemm_tf32f32", H200.tf32),
        (H200, "float", "cutlass_80_tensorop_s1688gemm", H200.tf32),
        (H200, "float", "nvjet_tst_128x64", H200.tf32),
        (T4, "float", "turing_s1688gemm", T4.fp32),  # it has no TF32
        (T4, "c10::Half", "turing_h1688gemm", T4.fp16),  # and no bfloat16
        (H200, "c10::BFloat16", "nvjet_hsh", H200.bf16),
        (H200, "c10::Float8_e4m3fn", "nvjet_qss", H200.fp8),
        (H200, "double", "cutlass_90_tensorop_d1684gemm", 66.9),
        (T4, "double", "volta_dgemm_64x64", T4.fp32 / 32),
        (H200, "signed char", "sm90_xmma_gemm_i8i8", H200.int8),
        (T4, "unsigned char", "turing_i8816gemm", T4.int8),
    ],
)
def test_a_product_is_held_against_the_peak_of_its_precision(gpu, kind, kernel, peak) -> None:
    product = op("mm", [1000, 1000], [1000, 1000], kind=kind)
    parts = [Work(kernel, 0, 1), Work("splitKreduce_kernel", 1, 2)]
    assert least_time(product, parts, gpu)[0] == pytest.approx(2e9 / (peak * 1e6))


def test_sweep_leaves_out_what_no_layer_has() -> None:
    assert sweep({"a": [(0, 1), (3, 4)]}, 0, 5) == [("a", 0, 1), ("a", 3, 4)]


def test_sweep_gives_each_moment_to_the_first_layer() -> None:
    layers = {"a": [(2, 4), (3, 5)], "b": [(0, 3), (8, 20)], "c": [(6, 7)]}
    assert sweep(layers, 1, 10) == [("b", 1, 2), ("a", 2, 5), ("c", 6, 7), ("b", 8, 10)]


def test_owners_cover_the_steps_without_overlap(planted, tmp_path) -> None:
    planted.step(0, 500).kernel(5, 30, 40).kernel(20, 75, 10).copy(100, 50, 120, 60, "DtoH", 9)
    found = owners(planted.trace(tmp_path))
    assert found[0][1] == 0 and found[-1][2] == 500
    assert all(a[2] == b[1] for a, b in pairwise(found))
    said = [(owner, round(b - a)) for owner, a, b in found]
    # The pause of 5 µs before the second kernel is the GPU's own: it had been launched.
    assert said == [
        ("python", 30),
        ("computing", 40),
        ("neither roof", 5),
        ("computing", 10),
        ("python", 35),
        ("copying", 60),
        ("python", 320),
    ]


def test_constants_mean_what_the_page_says() -> None:
    assert (MAJORITY, NEAR, SILENCE) == (0.5, 0.2, 1000) and len(BOUNDS) == 5


def test_work_of_the_steps_before_is_not_counted(tmp_path) -> None:
    """The host is two steps ahead when recording begins: each step takes the GPU 100 µs."""
    planted = Planted()
    for number in range(5):
        asked = 10 + 30 * number
        if number >= 2:  # the first two were launched before
            planted.step(asked - 5, 25)
        planted.kernel(asked, 40 + 100 * number, 100)
    seen = examine(planted.trace(tmp_path), gpu=H200)
    assert (seen.steps, seen.kernels) == (3, 1)
    assert seen.wall == pytest.approx(100) and seen.busy == pytest.approx(1)


@pytest.mark.parametrize("begin, end", [(50, 80), (-300, 900)])
def test_work_launched_before_that_runs_beside_a_step_takes_none_of_it(
    planted, tmp_path, begin, end
) -> None:
    """On another stream: it begins after the step's own work, or outlasts the step."""
    planted.kernel(-400, begin, end - begin)
    planted.step(0, 200).kernel(5, 10, 20).kernel(90, 100, 20)
    assert examine(planted.trace(tmp_path)).wall == pytest.approx(200)
