"""Timelines: what is drawn where, and what is left out."""

from dataclasses import replace

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from cases import cases
from test_plotting import no_window  # noqa: F401
from utils.profile import COLORS, Span, Trace, Work, call_kind, short_name, timeline
from utils.profile.drawing import depths


def work(name: str, begin: float, end: float, number: int = -1, **args) -> Work:
    """GPU work launched by the call with this correlation ``number``."""
    kind = "copy" if name.startswith("Memcpy") else "kernel"
    return Work(name, begin, end, args.pop("stream", 7), {"correlation": number, **args}, kind)


@pytest.fixture
def step() -> Trace:
    """A step of 1,000 µs: two launches on two threads, a copy, a wait, nested operators."""
    calls = [
        Span("cudaLaunchKernel", 20, 30, 0, {"correlation": 1}),
        Span("cuLaunchKernelEx", 320, 330, 1, {"correlation": 2}),
        Span("cudaMemcpyAsync", 600, 620, 0, {"correlation": 3}),
        Span("cudaStreamSynchronize", 625, 990, 0),
    ]
    return Trace(
        ranges=[Span("step", 0, 1000), Span("forward", 10, 200), Span("backward", 300, 500)],
        operators=[
            Span("aten::linear", 12, 100),
            Span("aten::addmm", 15, 90),
            Span("autograd::engine::evaluate_function: AddmmBackward0", 310, 400, 1),
        ],
        calls=calls,
        work=[
            work("gemm", 40, 300, 1),
            work("gemm", 340, 650, 2),
            work("Memcpy DtoH (Device -> Pageable)", 660, 662, 3),
        ],
        device="NVIDIA H200",
    )


def lanes(fig) -> list[str]:
    return [label.get_text() for label in fig.axes[0].get_yticklabels()]


def boxes(fig) -> list[tuple[float, float, float]]:
    """Left edge, right edge and height of the middle of every box."""
    found = []
    for collection in fig.axes[0].collections:
        if isinstance(collection, PolyCollection):
            for path in collection.get_paths():
                box = path.get_extents()
                found.append((box.x0, box.x1, round((box.y0 + box.y1) / 2)))
    return sorted(found)


def arrows(fig) -> list[tuple[float, float]]:
    """Where each arrow begins and ends on the axis of time."""
    texts = (text for text in fig.axes[0].texts if getattr(text, "arrow_patch", None))
    return [(text.xyann[0], text.xy[0]) for text in texts]


def names(fig) -> set[str]:
    return {text.get_text() for text in fig.axes[0].texts} - {""}


# --- names -------------------------------------------------------------------------------------


def test_what_a_call_is_for() -> None:
    kinds = {
        "launch": "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernelEx cudaGraphLaunch",
        "wait": "cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize",
        "copy": "cudaMemcpyAsync cudaMemsetAsync",
        "other call": "cudaFuncGetAttributes cudaStreamWaitEvent",
    }
    for kind, names in kinds.items():
        assert {call_kind(name) for name in names.split()} == {kind} and kind in COLORS


def test_names_without_what_only_a_compiler_needs() -> None:
    short = cases("test_names_without_what_only_a_compiler_needs")
    assert {name: short_name(name, 60) for name in short} == short


def test_depths_of_nested_spans_in_any_order() -> None:
    spans = [Span("b", 1, 4), Span("a", 0, 10), Span("c", 2, 3), Span("d", 4, 5), Span("e", 10, 11)]
    assert depths(spans) == [1, 0, 2, 1, 0]
    assert depths([Span("inside", 0, 4), Span("around", 0, 10)]) == [1, 0]
    assert sorted(depths([Span("a", 0, 1), Span("b", 0, 1)])) == [0, 1]


# --- drawings ----------------------------------------------------------------------------------


def test_a_step_from_the_program_down_to_the_gpu(step) -> None:
    """Boxes lie where the spans are; arrows lead from launches to work; the legend has an order."""
    fig = timeline(step, "A step")
    ax = fig.axes[0]
    threads = ["operators", "CUDA calls", "operators\n(autograd)", "CUDA calls\n(autograd)"]
    assert lanes(fig) == ["ranges", *threads, "GPU"]
    # The row of the ranges inside of the step has no name.
    assert list(ax.get_yticks()) == [0, -2, -3, -4, -5, -6]
    expected = [
        *[(0, 1000, 0), (10, 200, -1), (300, 500, -1), (12, 100, -2)],
        *[(20, 30, -3), (600, 620, -3), (625, 990, -3), (310, 400, -4), (320, 330, -5)],
        *[(40, 300, -6), (340, 650, -6), (660, 662, -6)],
    ]
    assert boxes(fig) == [pytest.approx(box) for box in sorted(expected)]
    assert len(boxes(timeline(step, "Deeper", depth=2))) == len(expected) + 1
    assert arrows(fig) == [(20, 40), (320, 340), (600, 660)]
    kinds = ["launch", "copy", "wait", "kernel"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == kinds
    shown = [patch.get_facecolor() for patch in ax.get_legend().get_patches()]
    assert shown == [to_rgba(COLORS[kind]) for kind in kinds]
    drawn = {tuple(c.get_facecolor()[0]) for c in ax.collections if isinstance(c, PolyCollection)}
    assert drawn == {to_rgba(COLORS[kind]) for kind in [*kinds, "range", "operator"]}


def test_overhead_has_a_lane_below_the_gpu_and_is_named(step) -> None:
    full = replace(step, overhead=[Span("Command Buffer Full", 400, 900, -1)])
    fig = timeline(full, "?")
    assert lanes(fig)[-2:] == ["GPU", "overhead"] and "Command Buffer Full" in names(fig)
    assert "overhead" not in lanes(timeline(full, "?", 0, 300))


def test_only_what_lies_between_begin_and_end(step) -> None:
    fig = timeline(step, "Backward", 300, 500)
    assert fig.axes[0].get_xlim() == (0, 200)
    assert all(0 <= left <= right <= 200 for left, right, _ in boxes(fig))
    assert (0, 250, 0) in boxes(timeline(step, "From before", 250, 500))  # the step, cut
    assert arrows(fig) == [(20, 40)]  # the other two are launched before, or start after
    assert not arrows(timeline(step, "A launch half seen", 325, 500))


def test_ranges_can_be_chosen(step) -> None:
    fig = timeline(step, "A step", ranges=["for", "back"])
    assert lanes(fig)[0] == "ranges" and len(fig.axes[0].get_yticks()) == 6
    assert {"forward", "backward"} <= names(fig) and "step" not in names(fig)


def test_long_stretches_are_in_milliseconds(step) -> None:
    assert timeline(step, "Short").axes[0].get_xlabel() == "time [µs]"
    fig = timeline(step, "Long", 0, 4000)
    assert fig.axes[0].get_xlabel() == "time [ms]"
    assert fig.axes[0].get_xlim() == (0, 4)
    assert (0, 1, 0) in boxes(fig) and arrows(fig)[0] == pytest.approx((0.02, 0.04))


def test_every_stream_and_thread_has_a_lane() -> None:
    trace = Trace(
        calls=[Span("cudaEventQuery", 0, 5, 2)],
        work=[work("gemm", 1, 2), work("nccl", 1, 5, stream=20)],
    )
    fig = timeline(trace, "Two streams")
    assert lanes(fig) == ["CUDA calls\n(thread 2)", "GPU", "GPU, stream 20"]
    assert boxes(fig) == [(0, 5, 0), (1, 2, -1), (1, 5, -2)]
    assert lanes(timeline(trace, "Before both", 0, 0.5)) == ["CUDA calls\n(thread 2)"]


def test_a_trace_of_the_cpu_alone() -> None:
    trace = Trace(ranges=[Span("forward", 0, 9)], operators=[Span("aten::mm", 1, 8)])
    fig = timeline(trace, "No GPU")
    assert lanes(fig) == ["ranges", "operators"]
    assert fig.axes[0].get_legend() is None and not arrows(fig)


def test_a_stretch_without_events_is_refused(step) -> None:
    for stretch in ((2000, 3000), (500, 500), (600, 500), (-50, -10)):
        with pytest.raises(ValueError, match="nothing was recorded between"):
            timeline(step, "Nothing", *stretch)
    with pytest.raises(ValueError, match="the trace is empty"):
        timeline(Trace(), "Nothing")
