"""profile_steps.py: three steps, profiled."""

import os
import tempfile

import torch

TEMPORARY = tempfile.gettempdir()  # /tmp on Linux


def step_profiler(folder=TEMPORARY, wait=5, warmup=2, active=3):
    """A profiler whose step() a loop calls after each step: one window of steps, then silence.

    After the window's last step it writes a trace and prints the operators that took longest. The
    loop needs ``wait + warmup + active`` steps: a shorter one leaves a shorter trace, or none, and
    then the last lines below print no ranges or raise an AssertionError. A failed step adds to the
    others' counts. If the folder cannot be written, ``step()`` raises. ``warmup`` and ``active``
    for loader workers: below. If the loop reads no results, add 1022 / launches a step to
    ``warmup``: GPU work launched before it seems to be missing from the trace.
    """
    # Hide its messages: without a GPU it reports an error. KINETO_LOG_LEVEL=1 shows them.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")

    def report(seen):
        os.makedirs(folder, exist_ok=True)
        rank, steps = os.environ.get("RANK", 0), max(1, seen.step_num - wait - warmup)
        seen.export_chrome_trace(f"{folder}/step{seen.step_num}_rank{rank}.json.gz")
        us = f"self_{'device' if torch.cuda.is_available() else 'cpu'}_time_total"
        rows = [row for row in seen.key_averages() if row.key.startswith("aten::")]
        for row in sorted(rows, key=lambda row: -getattr(row, us))[:4]:
            print(f"{getattr(row, us) / steps:7.0f} µs a step in {row.count / steps:g} x {row.key}")

    plan = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    return torch.profiler.profile(schedule=plan, on_trace_ready=report, acc_events=True)


if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(torch.randn(2000, 512), 50)  # yours
    # While the profiler starts, workers fill their queue: record when it is used up, whole rounds.
    # A pass over the loader needs 7 + 3 * n * queued + 3 * max(n, 1) steps: 10 without workers, 43
    # with four. A shorter one gives means over too few steps, or its end, without new batches.
    n, queued = loader.num_workers, loader.prefetch_factor or 0
    with step_profiler(warmup=2 + 3 * n * queued, active=3 * max(n, 1)) as seen:
        for batch in loader:  # your training loop
            torch.cov(batch.to("cuda" if torch.cuda.is_available() else "cpu"))
            seen.step()  # after each batch, also if you accumulate; else nothing is recorded
    rows = [r for r in seen.key_averages() if r.is_user_annotation and r.cpu_time]
    print("rank", os.environ.get("RANK", 0), *(f"\n{r.cpu_time:7.0f} µs in {r.key}" for r in rows))
