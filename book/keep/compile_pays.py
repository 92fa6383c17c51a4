"""compile_pays.py: after how many steps compiling pays."""

import time

import torch


def seconds(step, calls):
    start = time.perf_counter()
    for _ in range(calls):
        loss = step()
    loss.item()  # waits for the GPU
    return (time.perf_counter() - start) / calls


def compile_pays(model, step, backend="inductor"):
    """Take 200 steps, every other 20 compiled; print what one takes, and what broke its graph.

    A step returns its loss, a tensor: the clock stops when it is known.
    """
    eagerly = torch.compiler.set_stance("force_eager")(seconds)
    model.forward = torch.compile(model.forward, backend=backend)
    rounds = [[eagerly(step, 20), seconds(step, 20)] for _ in range(5)]  # the first one compiles
    (_, cold), (eager, warm) = rounds[0], map(min, zip(*rounds[1:], strict=True))
    pays = f"after {20 * (cold - warm) / (eager - warm):,.0f} steps" if warm < eager else "never"
    print(f"{1e3 * eager:.3f} ms a step, compiled {1e3 * warm:.3f}: pays {pays}")
    print({k: dict(torch._dynamo.utils.counters.pop(k, {})) for k in ("stats", "graph_break")})


if __name__ == "__main__":

    def step():  # your own: forward, backward, and its optimizer's step
        loss = model(x).square().mean()
        loss.backward()
        return loss

    device, backend = ("cuda", "inductor") if torch.cuda.is_available() else ("cpu", "eager")
    model = torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.GELU()).to(device)
    x = torch.randn(16_384 if device == "cuda" else 16, 1024, device=device)
    compile_pays(model, step, backend)  # "eager" compiles nothing: only its graphs count
