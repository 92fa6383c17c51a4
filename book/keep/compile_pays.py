"""compile_pays.py: after how many steps compiling pays."""

import time
from unittest.mock import patch

import torch


def seconds(step, calls):
    start = time.perf_counter()
    for _ in range(calls):
        loss = step()
    loss.item()  # waits for the GPU
    return (time.perf_counter() - start) / calls


def compile_pays(model, step, backend="inductor"):
    """Take 200 steps, every other 20 compiled; print what one takes, and what broke its graph.

    A step returns its loss, a tensor: the clock stops when it is known. What the process compiled
    before is forgotten. ``model``, not compiled yet, is not compiled afterwards, either.
    """
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    patched = patch.object(model, "forward", torch.compile(model.forward, backend=backend))(seconds)
    (_, cold), *rounds = [[seconds(step, 20), patched(step, 20)] for _ in range(5)]
    eager, warm = min(s for s, _ in rounds), max(s for _, s in rounds)  # the least gain
    pays = f"after {20 * (cold - warm) / (eager - warm):,.0f} steps" if warm < eager else "not seen"
    print(f"{1e3 * eager:.3f} ms at best, compiled {1e3 * warm:.3f} at worst; gain: {pays}")
    print({k: dict(torch._dynamo.utils.counters[k]) for k in ("stats", "graph_break")})


if __name__ == "__main__":

    def step():  # your own: forward, backward, and its optimizer's step
        (loss := model(torch.randn(rows, 1024, device=device)).square().mean()).backward()
        return loss

    device, rows = ("cuda", 16_384) if torch.cuda.is_available() else ("cpu", 16)
    model = torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.GELU()).to(device)
    # "eager" compiles nothing: only its graphs count
    compile_pays(model, step, "eager" if device == "cpu" else "inductor")
