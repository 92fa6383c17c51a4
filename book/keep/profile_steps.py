"""profile_steps.py: three steps, profiled."""

import os
import tempfile

import torch
from torch.profiler import profile, schedule

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to(device)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(256, 512, device=device)


def report(profiler):
    file = f"step{profiler.step_num}_rank{os.environ.get('RANK', 0)}.json.gz"
    profiler.export_chrome_trace(os.path.join(tempfile.gettempdir(), file))
    us = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = [row for row in profiler.key_averages() if row.key.startswith("aten::")]
    for row in sorted(rows, key=lambda row: -getattr(row, us))[:4]:
        print(f"{getattr(row, us) / 3:7.0f} µs a step in {row.count // 3} x {row.key}")


plan = schedule(wait=5, warmup=2, active=3, repeat=1)  # one window, then silence
with profile(schedule=plan, on_trace_ready=report, acc_events=True) as profiler:
    for _ in range(12):  # your training loop
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        profiler.step()  # without this line nothing is recorded
