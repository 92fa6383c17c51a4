"""compile_pays.py: after how many steps compiling pays."""

import time

import torch


def seconds(step, calls):
    start = time.perf_counter()
    for _ in range(calls):
        loss = step()
    loss.item()  # waits for the GPU
    return (time.perf_counter() - start) / calls


def compile_pays(step):
    """Take 200 steps, every other 20 compiled; print what one takes, and what broke its graph.

    Call it first in a new process: what was compiled there before can make the price too low.
    ``step`` is yours, with all in it that you compile, and returns its loss, a tensor: the clock
    stops when it is known. Turns that compile, as the first does, are the price. The fastest eager
    turn is set against the slowest compiled one; ``inf``: they overlap, and no gain is shown.
    """
    torch.compiler.reset()
    (counters := torch._dynamo.utils.counters).clear()
    eagerly = torch.compiler.set_stance("force_eager")(seconds)
    turns = [(eagerly(step, 20), seconds(step, 20), counters["stats"].total()) for _ in range(5)]
    # cold: the turns that added graphs, each the first with its number of them
    eager, cold = min(s for s, _, _ in turns), {n: s for _, s, n in reversed(turns)}.values()
    hot = max((s for _, s, _ in turns if s not in cold), default=float("inf"))  # the least gain
    steps = 20 * sum(max(0, s - hot) for s in cold) / (eager - hot) if hot < eager else float("inf")
    print(f"{1e3 * eager:.3f} ms, compiled {1e3 * hot:.3f} at worst: gain after {steps:.0f} steps")
    print({k: dict(counters[k]) for k in ("stats", "graph_break")})


if __name__ == "__main__":

    def step():  # your own: forward, backward, and its optimizer's step
        (loss := model(torch.randn(16, 4, 64, device=device)).square().mean()).backward()
        return loss

    device, backend = ("cuda", "inductor") if torch.cuda.is_available() else ("cpu", "eager")
    model = torch.compile(torch.nn.TransformerEncoderLayer(64, 4, device=device), backend=backend)
    compile_pays(step)  # "eager" compiles nothing, it only counts graphs
