"""prefetch.py: the next batches are made, pinned and sent while you compute on this one."""

from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import torch

# One stream for all calls (by GPU and priority), or each would cache its own memory.
SIDES, SAFE, maps = {}, "numpy PIL pathlib datetime decimal", torch.utils._pytree.tree_map_only


def movable(x, ok=(Enum, int | None, float, str, bytes, torch.Tensor, torch.dtype, torch.device)):
    """Whether ``x`` is a tensor. What may hide some, as a set, is refused: drop or convert it."""
    if isinstance(x, (ok, complex, type(maps))) or type(x).__module__.split(".")[0] in SAFE.split():
        return torch.is_tensor(x)
    raise TypeError(f"{type(x)} may hide tensors: make it a dict, as map(dict, batches)")


def prefetch(batches, device, depth=2, priority=0):
    """Yield batches (tensors in dicts, lists, tuples) on ``device``, ``depth`` made in advance.

    With CUDA, a thread makes and sends them, without your ``no_grad`` or autocast; compute in the
    stream current at the first ``next``. No ``PackedSequence``. You may refill a buffer in host
    memory for the next batch, but none on the GPU: that is not copied. Random numbers that thread
    and loop draw from one generator come in any order. ``break`` waits for ``depth`` more, and
    loses them. If ``batches`` decode JPEGs on the GPU: one call a batch, one such loop at a time.
    If a DataLoader pins, first call ``torch.get_num_threads()``, once. Lower ``priority``: sooner.
    """
    if torch.device(device).type != "cuda":  # no side stream: one after the other
        return (yield from (maps(movable, lambda t: t.to(device), b) for b in batches))
    main, batches, end = torch.cuda.current_stream(device), iter(batches), movable  # end: no batch
    side = SIDES.setdefault((main.device, priority), torch.cuda.Stream(main.device, priority))

    def make(used):  # runs in the thread
        torch.cuda.set_stream(side), side.wait_event(used)  # on the GPU: depth + 2 at most
        pinned = maps(movable, lambda t: t.pin_memory() if t.is_cpu else t, next(batches, end))
        batch = maps(torch.Tensor, lambda t: t.to(main.device, non_blocking=True), pinned)
        return side.record_event(torch.cuda.Event(blocking=True)).synchronize() or batch

    # As many cores as you compute on, if torch.get_num_threads() ran before a DataLoader pinned.
    with ThreadPoolExecutor(1, "", torch.set_num_threads, [torch.get_num_threads()]) as thread:
        waiting = [thread.submit(make, main.record_event()) for _ in range(depth + 1)]
        while waiting[0].result() is not end:  # raises here what was raised there
            # What the main stream reads is marked, so that its memory is not used again before.
            yield maps(torch.Tensor, lambda t: t.record_stream(main) or t, waiting.pop(0).result())
            waiting.append(thread.submit(make, main.record_event()))


if __name__ == "__main__":
    print(*map(int, prefetch(torch.arange(6), "cuda" if torch.cuda.is_available() else "cpu")))
