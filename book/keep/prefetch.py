"""prefetch.py: the next batches are made, pinned and sent while you compute on one."""

from concurrent.futures import ThreadPoolExecutor

import torch

SIDES = {}  # one side stream per GPU, reused: each stream caches memory of its own


def each(move, batch):
    """``batch`` with its tensors moved; a leaf of any type not listed is refused."""
    for x in torch.utils._pytree.tree_leaves(batch):
        if not isinstance(x, int | float | str | bytes | None) and type(x) is not torch.Tensor:
            raise TypeError(f"{type(x)} may hide tensors: make it a dict or a plain tensor")
    return torch.utils._pytree.tree_map_only(torch.Tensor, move, batch)


def prefetch(batches, device, depth=2):
    """Yield batches on ``device``; with CUDA, a thread makes ``depth`` in advance.

    A batch holds dense tensors, numbers, strings, None, in dicts, lists, tuples, no
    ``PackedSequence``. Subclasses of tensors are refused, as pinning makes them plain: a
    torchvision box would no longer be flipped with its image. With CUDA, you may refill a
    batch's buffers in host memory, none on the GPU; the thread that makes batches inherits
    neither ``no_grad`` nor autocast. Errors arrive where you iterate. Compute in the stream
    current at the first ``next``. After a ``break`` you may iterate the same generator
    further. Drop it, also by an error, and it first waits for up to ``depth + 1`` more,
    which are lost. A loader that draws random numbers needs its own generator. If a
    DataLoader that pins starts before the first ``next``, call ``torch.get_num_threads()``
    before it, or pin on one core.
    """
    if torch.device(device).type != "cuda":  # no thread: one after the other
        return (yield from (each(lambda t: t.to(device), b) for b in batches))
    # A DataLoader's pinning sets one core for every thread that has not asked before.
    main, cores, source = torch.cuda.current_stream(device), torch.get_num_threads(), iter(batches)
    side, end = SIDES.setdefault(main.device, torch.cuda.Stream(main.device)), "no more"

    def make(used):  # runs in the thread, whose stream is ``side``
        side.wait_event(used)  # so that at most depth + 2 batches are on the GPU
        batch = each(lambda t: (t.pin_memory() if t.is_cpu else t).cuda(), next(source, end))
        return side.synchronize() or batch  # so that a loader may refill its buffer

    with ThreadPoolExecutor(1, "", torch.cuda.set_stream, [side]) as pool:
        # In this order, or a DataLoader that this thread starts would set one here, too.
        pool.submit(torch.get_num_threads), pool.submit(torch.set_num_threads, cores)
        waiting = [pool.submit(make, main.record_event()) for _ in range(depth + 1)]
        while (batch := waiting.pop(0).result()) is not end:
            # Memory that the main stream reads is marked: it is not reused before.
            yield each(lambda t: t.record_stream(main) or t, batch)
            waiting.append(pool.submit(make, main.record_event()))


if __name__ == "__main__":
    print(*map(int, prefetch(torch.arange(6), "cuda" if torch.cuda.is_available() else "cpu")))
