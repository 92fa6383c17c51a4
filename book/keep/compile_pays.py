"""compile_pays.py: after how many steps compiling pays."""

import time

import torch

device, backend = ("cuda", "inductor") if torch.cuda.is_available() else ("cpu", "eager")
model = torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.GELU()).to(device)
x = torch.randn(16_384 if device == "cuda" else 16, 1024, device=device)
optimizer = torch.optim.AdamW(model.parameters())  # put your own three here, your step below


def seconds(step, calls):
    start = time.perf_counter()
    for _ in range(calls):
        loss = step()
    loss.item()  # waits for the GPU
    return (time.perf_counter() - start) / calls


def train_once():
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


eager = min(seconds(train_once, 20) for _ in range(5))  # the first round only warms up
paid = seconds(lambda: model.compile(backend=backend) or train_once(), 1) - eager
later = min(seconds(train_once, 20) for _ in range(5))
if device == "cuda":
    pays = f"after {paid / (eager - later):,.0f} steps" if later < eager else "never"
    print(f"{1e3 * eager:.3f} ms a step, compiled {1e3 * later:.3f}: pays {pays}")
print(device, {k: dict(torch._dynamo.utils.counters[k]) for k in ("stats", "graph_break")})
