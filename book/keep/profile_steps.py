"""profile_steps.py: three steps, profiled."""

import os
import tempfile

import torch

TEMPORARY = tempfile.gettempdir()  # /tmp on Linux


def step_profiler(folder=TEMPORARY, wait=5, warmup=2, active=3):
    """A profiler whose step() a loop calls after each step: one window of steps, then silence.

    At its end it writes a trace and prints what took longest; a loop that ends earlier leaves a
    shorter trace, or none if the window has not begun. A failed step adds to the others' counts.
    Of a compiled model it prints only what was not compiled; the trace has all.
    """
    # Hide its errors: without a GPU it reports one. KINETO_LOG_LEVEL=4 shows them.
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
    model = torch.nn.Linear(512, 512, device="cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    with step_profiler() as profiler:
        for _ in range(12):  # your training loop
            optimizer.zero_grad()
            model(torch.randn_like(model.weight)).square().mean().backward()
            optimizer.step()
            profiler.step()  # without this line nothing is recorded
