"""as_one_graph.py: a whole training run as one launch."""

import gc

import torch
from torch.nn import functional as F


def as_one_graph(training, few_steps):
    """Return training() as one launch; without a GPU, training itself.

    Train on the current GPU: work elsewhere is not captured, and no launch repeats it.
    Python runs once, at the capture: prints, counters and rates stay as then.
    Autocast goes inside each step, around the forward only: a longer block goes on
    with the first weights, cast once. CUDA's around this call is refused.
    """
    assert not torch.is_autocast_enabled("cuda"), "use autocast around each forward"
    if not torch.cuda.is_available():
        return training
    torch.cuda.synchronize()  # what is queued comes before the first steps
    with torch.cuda.stream(torch.cuda.Stream()):
        few_steps()  # compilers compile and libraries choose before the capture
    gc.collect()  # an old graph that is freed meanwhile would spoil the capture
    graph = torch.cuda.CUDAGraph()  # its capture waits for these steps
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = training()
    # A graph keeps alive nothing that it reads; a launch overwrites the last one's.
    return lambda *, kept=training: (graph.replay(), result)[1]


if __name__ == "__main__":

    def training(steps=100):
        torch.nn.init.normal_(w)
        for rows in torch.rand_like(x[:, 0]).argsort().view(100, -1)[:steps]:
            loss = F.cross_entropy(x[rows] @ w, y[rows])
            w.data.sub_(torch.autograd.grad(loss, w)[0])

    x = torch.randn(10000, 8, device="cuda" if torch.cuda.is_available() else "cpu")
    w, y = x.new_zeros(8, 2).requires_grad_(), (x[:, 0] > 0).long()
    as_one_graph(training, lambda: training(3))()
    print(f"{((x @ w).argmax(1) == y).float().mean():.0%} right")
