"""compare.py: is B faster than A, and by how much."""

import gc
import random
from timeit import default_timer, timeit

import torch


def ratio(a, b, draws=2000):
    """Median of b over median of a, and both ends of its 95% interval; they share their rounds.

    The interval is a bootstrap: rounds are drawn again and again, each whole, a with its b. So what
    slowed the machine for a while slowed both, and mostly cancels. Drawn apart, it would not.
    """
    n, times = len(a), torch.tensor([b, a], dtype=torch.float64, device="cpu")
    assert n >= 8 and times.log().isfinite().all(), "8 rounds or more, each above 0 s"
    drawn = torch.randint(n, (draws, n), generator=torch.Generator().manual_seed(0), device="cpu")
    found = torch.div(*times[:, drawn].quantile(0.5, dim=2))
    return torch.div(*times.quantile(0.5, dim=1)), *(found.quantile(q, 0) for q in (0.025, 0.975))


def compare(arms, rounds=100, calls=1, warmup_seconds=1):
    """Print how long each arm takes beside the first; return the seconds of each of its turns."""
    first, second, *others = times = {arm: [] for arm in arms}  # refuses fewer than two
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else lambda: None
    # timeit turns Python's garbage collector off, and an arm that makes cycles would not pay for
    # them: where it was on, on() turns it on again.
    end, left, on = default_timer() + warmup_seconds, rounds, gc.enable if gc.isenabled() else wait
    # A round that begins before the end of the warm-up is not counted.
    while (left := left - (default_timer() > end)) >= 0:
        for arm in random.sample(list(arms), len(arms)):
            times[arm].append(timeit(arms[arm], on, lambda: wait() or default_timer(), calls))
    for arm in (second, *others):
        x, low, high = ratio(times[first][-rounds:], times[arm][-rounds:])
        # A difference as large as the interval is wide cannot hide in it.
        more = "" if low > 1 or high < 1 else f": no difference seen, {high / low - 1:.1%} would be"
        print(f"{arm}: {x:.3f} times as long as {first} ({low:.3f} to {high:.3f}){more}")
    return {arm: seconds[-rounds:] for arm, seconds in times.items()}


if __name__ == "__main__":
    x = torch.rand(4096, 4096, device="cuda") if torch.cuda.is_available() else torch.rand(512, 512)
    compare({"x @ x": lambda: x @ x, "again": lambda: x @ x, "x @ x + 1": lambda: x @ x + 1})
