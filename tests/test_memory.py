"""Sizes in readable units, and what the helpers make of snapshots and traces.

The snapshots and traces here are written by hand, in the form in which torch gives them
(``torch.cuda.memory._snapshot``), so that these tests run without a GPU.
"""

import weakref

import matplotlib.pyplot as plt
import pytest
import torch

from utils import memory
from utils.memory import GIB, KIB, MIB, format_bytes, lifetimes, live_at_peak, segments, timeline
from utils.plotting import draw_segments


def test_bytes_in_readable_units() -> None:
    """Never "1e+03 MiB"."""
    counts = (0, 1, 1023, KIB, 1536, 20 * MIB, 1000 * MIB, 999.7 * MIB, 1023 * KIB)
    counts += (3.814697265625 * MIB, 80 * GIB, 2000 * GIB, -2 * MIB)
    assert [format_bytes(count) for count in counts] == [
        *("0 B", "1 B", "1023 B", "1 KiB", "1.5 KiB", "20 MiB", "1000 MiB", "1000 MiB"),
        *("1023 KiB", "3.81 MiB", "80 GiB", "2000 GiB", "-2 MiB"),
    ]


def test_peak_is_of_this_call_and_includes_work_still_queued(monkeypatch) -> None:
    """The counter is reset before the work, and read only when the GPU has done it."""
    calls = []
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: calls.append("read") or 7)
    assert memory.peak_bytes(lambda: calls.append("work")) == 7
    done = ["synchronize", "reset_peak_memory_stats", "work", "synchronize", "read"]
    assert calls == done


def test_cycles_are_collected_before_the_cache_is_emptied(monkeypatch) -> None:
    class Held:
        pass

    alive = []
    held = Held()
    held.itself, left = held, weakref.ref(held)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(left()))
    del held
    memory.clean()
    assert alive == [None]


# --- snapshots -----------------------------------------------------------------------------------


def segment(address: int, *blocks: tuple[int, str], stream: int = 0, pool: str = "large") -> dict:
    """A segment as ``torch.cuda.memory_snapshot()`` describes it, reduced to what is read."""
    return {
        "address": address,
        "stream": stream,
        "segment_type": pool,
        "total_size": sum(size for size, _ in blocks),
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }


def test_segments_are_sorted_and_states_have_short_names() -> None:
    late = segment(900, (5, "active_awaiting_free"), pool="small")
    early = segment(100, (20, "active_allocated"), (10, "inactive"))
    assert segments([late, early]) == [
        {"pool": "large", "size": 30, "blocks": [[20, "active"], [10, "free"]]},
        {"pool": "small", "size": 5, "blocks": [[5, "waiting"]]},
    ]


def test_segments_of_one_stream() -> None:
    both = [segment(1, (5, "inactive"), stream=7), segment(9, (6, "inactive"))]
    assert [s["size"] for s in segments(both, stream=7)] == [5]
    assert [s["size"] for s in segments(both, stream=0)] == [6]  # 0 is a stream, not "all"
    assert len(segments(both)) == 2
    assert segments([]) == []


def test_segments_that_do_not_add_up_or_have_a_new_state() -> None:
    with pytest.raises(ValueError, match="6 bytes has blocks of 5"):
        segments([segment(1, (5, "inactive")) | {"total_size": 6}])
    with pytest.raises(ValueError, match="active_pinned"):
        segments([segment(1, (5, "active_pinned"))])


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def boxes(ax) -> list[tuple[float, float, float]]:
    """Left end, width and lower end of every rectangle, to six digits."""
    return [tuple(round(v, 6) for v in (p.get_x(), p.get_width(), p.get_y())) for p in ax.patches]


def test_drawn_segments_fill_a_row_each_with_sizes_where_they_fit(ax) -> None:
    large = {"pool": "large", "size": 100, "blocks": [[90, "active"], [10, "free"]]}
    small = {"pool": "small", "size": 2 * MIB, "blocks": [[2 * MIB, "waiting"]]}
    assert draw_segments(ax, [large, small], y=3.0) == 1.0
    assert boxes(ax) == [(0, 0.9, 2.2), (0.9, 0.1, 2.2), (0, 1, 1.2)]
    assert len({p.get_facecolor() for p in ax.patches}) == 3
    assert [t.get_text() for t in ax.texts] == ["100 B large", "90 B", "2 MiB small", "2 MiB"]
    assert ax.texts[1].get_position() == (0.45, 2.6), "in the middle of its block"


def test_drawn_segments_follow_one_another_in_rows(ax) -> None:
    """The second begins behind the first, and its first block goes on in the next row."""
    one = {"pool": "large", "size": 30, "blocks": [[16, "active"], [14, "free"]]}
    assert draw_segments(ax, [one, one], row=40) == -2
    first = [(0, 0.4, -0.8), (0.4, 0.35, -0.8), (0.75, 0.25, -0.8)]
    assert boxes(ax) == [*first, (0, 0.15, -1.8), (0.15, 0.35, -1.8)]
    assert not ax.texts


# --- traces --------------------------------------------------------------------------------------


def alloc(address: int, size: int) -> dict:
    frames = [{"name": f"allocates {size}"}]
    return {"action": "alloc", "addr": address, "size": size, "frames": frames}


def free(address: int) -> list[dict]:
    return [{"action": f"free_{what}", "addr": address} for what in ("requested", "completed")]


# a of 10 bytes at 1; b of 20 at 2; a dies; c of 5 at the same address 1; b dies.
TRACE = [alloc(1, 10), alloc(2, 20), *free(1), alloc(1, 5), *free(2)]


def test_lifetimes_pair_each_allocation_with_its_own_free() -> None:
    found = [(life.start, life.end, life.size, life.address) for life in lifetimes(TRACE)]
    assert found == [(0, 2, 10, 1), (1, 5, 20, 2), (4, 7, 5, 1)]
    said = [life.frames[0]["name"] for life in lifetimes(TRACE)]
    assert said == ["allocates 10", "allocates 20", "allocates 5"]


def test_lifetimes_ignore_what_began_before_and_what_is_not_a_tensor() -> None:
    others = [{"action": "segment_alloc", "addr": 1, "size": 100}, {"action": "oom", "size": 9}]
    assert lifetimes([*free(77), *others]) == []


def test_lifetimes_of_a_trace_with_missing_events() -> None:
    with pytest.raises(ValueError, match="event 1 allocates 0x1, which is in use"):
        lifetimes([alloc(1, 10), alloc(1, 10)])


def test_live_at_peak() -> None:
    assert [life.size for life in live_at_peak(lifetimes(TRACE))] == [10, 20]
    # What died before the peak does not count, though it had the same address.
    swap = [alloc(1, 10), *free(1), alloc(1, 10), alloc(2, 1)]
    assert [(life.start, life.size) for life in live_at_peak(lifetimes(swap))] == [(3, 10), (4, 1)]
    # Of two peaks of one height, the first.
    twice = [alloc(1, 10), *free(1), alloc(2, 10)]
    assert [life.address for life in live_at_peak(lifetimes(twice))] == [1]
    assert live_at_peak([]) == []


def test_timeline_keeps_every_event_if_there_is_room() -> None:
    """Its kinds stand in the order in which they appear."""
    every, last = [0, 1, 2, 3, 4, 5, 6], ("a", [0, 20, 20, 20, 20, 0, 0])
    kinds = timeline(lifetimes(TRACE), ["b", "a", "b"])
    assert [*kinds.items()] == [("event", every), ("b", [10, 10, 0, 0, 5, 5, 5]), last]
    assert timeline([], []) == {"event": []}


def test_timeline_in_few_points_keeps_the_peak() -> None:
    few = timeline(lifetimes(TRACE), ["a", "b", "a"], points=2)
    assert few == {"event": [1, 4], "a": [10, 5], "b": [20, 20]}


@pytest.mark.parametrize(("kinds", "points"), [(["a"], 10), (["a", "b", "a"], 0)])
def test_timeline_with_kinds_or_points_missing(kinds, points) -> None:
    with pytest.raises(ValueError, match="3 lives"):
        timeline(lifetimes(TRACE), kinds, points=points)
