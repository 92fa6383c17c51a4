"""as_one_graph.py: a whole training run as one launch."""

import gc

import torch
from torch.nn import functional as F

cuda = torch.cuda.is_available()


def as_one_graph(training, few_steps):
    """Return training() as one launch; without a GPU, training itself."""
    if not cuda:
        return training
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        few_steps()  # compilers compile and libraries choose before the capture
    torch.cuda.current_stream().wait_stream(side)
    gc.collect()  # an old graph that is freed meanwhile would spoil the capture
    with torch.cuda.graph(graph):
        training()
    return lambda kept=training: graph.replay()  # a graph keeps nothing alive that it reads


def training(steps=100):
    torch.nn.init.normal_(w)
    for rows in torch.rand(len(x), device=x.device).argsort().view(100, -1)[:steps]:
        w.data.sub_(torch.autograd.grad(F.cross_entropy(x[rows] @ w, y[rows]), w)[0])


x = torch.randn(10_000, 8, device="cuda" if cuda else "cpu")
w, y = x.new_zeros(8, 2).requires_grad_(), (x[:, 0] > 0).long()
as_one_graph(training, lambda: training(3))()
print(f"{((x @ w).argmax(1) == y).float().mean():.0%} right")
