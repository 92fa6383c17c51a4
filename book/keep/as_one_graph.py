"""as_one_graph.py: a whole training run as one launch."""

import gc

import torch
from torch.nn import functional as F


def as_one_graph(training, few_steps):
    """Return training() as one launch; without a GPU, training itself."""
    assert not torch.is_autocast_enabled("cuda"), "use autocast inside training, not around it"
    if not torch.cuda.is_available():
        return training
    torch.cuda.synchronize()  # what is queued comes before the first steps
    with torch.cuda.stream(torch.cuda.Stream()):
        few_steps()  # compilers compile and libraries choose before the capture
    gc.collect()  # an old graph that is freed meanwhile would spoil the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # waits for these steps
        result = training()
    # A graph keeps nothing alive that it reads; what it returns, the next launch overwrites.
    return lambda kept=training: (graph.replay(), result)[1]


if __name__ == "__main__":

    def training(steps=100):
        torch.nn.init.normal_(w)
        for rows in torch.rand(len(x), device=x.device).argsort().view(100, -1)[:steps]:
            w.data.sub_(torch.autograd.grad(F.cross_entropy(x[rows] @ w, y[rows]), w)[0])

    x = torch.randn(10_000, 8, device="cuda" if torch.cuda.is_available() else "cpu")
    w, y = x.new_zeros(8, 2).requires_grad_(), (x[:, 0] > 0).long()
    as_one_graph(training, lambda: training(3))()
    print(f"{((x @ w).argmax(1) == y).float().mean():.0%} right")
