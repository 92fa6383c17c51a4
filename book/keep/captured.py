"""captured.py: a step as one CUDA graph."""

import torch


def captured(step, *example, warmup=3, pool=None):
    """Return a replay of step(*example); without a GPU, step itself. Warming up runs it, too.

    Python's numbers stay as captured (a rate: make it a tensor). Each batch needs example's shapes
    (drop_last=True). Two graphs share memory by pool=getattr(first, "pool", None).
    """
    plain = all(isinstance(t, torch.Tensor) and not t.requires_grad for t in example)
    if not plain or torch.is_autocast_enabled("cuda"):
        raise TypeError("give it tensors that need no gradient, and use autocast inside the step")
    if not torch.cuda.is_available():
        return step
    static, graph = [t.to("cuda", copy=True) for t in example], torch.cuda.CUDAGraph()
    torch.cuda.synchronize()  # what is queued comes before the warm-up
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(warmup):
            step(*static)
    # An old graph that Python's garbage collector frees in here can spoil the capture: `import gc;
    # gc.collect()` right before captured(), or set TORCH_CUDAGRAPH_GC=1, and PyTorch does it here.
    with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):  # waits for all that
        result = step(*static)  # thread_local: another thread may allocate

    def replay(*tensors):
        for a, b in zip(static, tensors, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), f"captured for {a.dtype} {a.shape}"
            a.copy_(b, non_blocking=True)
        graph.replay()
        return result  # a replay of any graph in this pool may overwrite it: clone what you keep

    replay.step, replay.pool = step, graph.pool()  # keeps step's closure alive, not its globals
    return replay


if __name__ == "__main__":
    x = torch.arange(3.0, device="cuda" if torch.cuda.is_available() else "cpu")
    print(captured(lambda x: 2 * x, torch.ones_like(x))(x).tolist())
