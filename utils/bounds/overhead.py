"""What the profiler added to a step, taken off the owners that it made longer."""

HOST = ("python", "data", "silent host")  # whose time the profiler can make longer
# In this book's traces it made Python take at most 2.1 times as long; this is too much.
BEYOND_BELIEF = 4
SAME = 1.05  # two measurements of one step may differ by a few percent


def without_profiler(
    time: dict[str, float], steps: int, wall: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return each owner's time without the profiler; and a sentence where that is a guess.

    Launching operators is what it slows most, so Python pays. Where that would have had to make
    Python :data:`BEYOND_BELIEF` times slower, it slowed a loader, too, or other code of the host,
    and nobody knows which by how much: then all of the host's owners are shortened alike.

    Parameters
    ----------
    time : dict
        µs of each owner in all profiled steps.
    steps : int
        How many there are.
    wall : float
        µs that one takes without the profiler.
    """
    added = max(0.0, sum(time.values()) - steps * wall)
    python, host = time["python"], sum(time[owner] for owner in HOST)
    if added <= python * (1 - 1 / BEYOND_BELIEF):
        return {**time, "python": python - added}, ()
    left = max(0.0, 1 - added / host) if host else 0.0
    found = {owner: us * left if owner in HOST else us for owner, us in time.items()}
    total = sum(found.values())
    said = (
        f"the profiler added {added / steps:,.0f} µs to a step, too much for Python's "
        f"{python / steps:,.0f} µs alone: "
    )
    if total > SAME * steps * wall:
        said += (
            f"it slowed more than the host, and the shares are of {total / steps:,.0f} µs, not of "
            f"the {wall:,.0f} µs that a step takes without it"
        )
    elif host - python > (SAME - 1) * steps * wall:
        said += (
            "what the host does for data, or in silence, was shortened in proportion with Python's "
            "share. That is a guess: trust a test with the stopwatch"
        )
    else:
        said = ""
    return found, (said,) * bool(said)
