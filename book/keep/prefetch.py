"""prefetch.py: the next batches are made, pinned and sent while you compute on this one."""

from concurrent.futures import ThreadPoolExecutor

import torch

# One stream for all calls (by GPU and priority), or each would cache its own memory.
SIDES, SAFE, maps = {}, "builtins numpy pathlib datetime PIL", torch.utils._pytree.tree_map_only


def movable(x):
    """Whether ``x`` is a tensor. A set, a UserDict, a dataclass may hide some, and is refused."""
    if not (torch.is_tensor(x) or type(x).__module__.split(".")[0] in SAFE) or isinstance(x, set):
        raise TypeError(f"{type(x)} may hide tensors: make it a dict, as map(dict, batches)")
    return torch.is_tensor(x)


def prefetch(batches, device, depth=2, priority=0):
    """Yield batches (tensors in dicts, lists, tuples) on ``device``, ``depth`` made in advance."""
    if torch.device(device).type != "cuda":  # no side stream: one after the other
        return (yield from (maps(movable, lambda t: t.to(device), b) for b in batches))
    main, batches, end = torch.cuda.current_stream(device), iter(batches), object()
    side = SIDES.setdefault((main.device, priority), torch.cuda.Stream(main.device, priority))

    def make(used):  # runs in the thread
        torch.cuda.set_stream(side), side.wait_event(used)  # on the GPU: depth + 2 at most
        pinned = maps(movable, lambda t: t.pin_memory() if t.is_cpu else t, next(batches, end))
        batch = maps(torch.Tensor, lambda t: t.to(main.device, non_blocking=True), pinned)
        maps(torch.Tensor, lambda t: t.record_stream(main), batch)  # main reads it before reuse
        return side.record_event(torch.cuda.Event(blocking=True)).synchronize() or batch

    # It pins on as many cores as you compute on: a DataLoader that pins leaves new threads one.
    with ThreadPoolExecutor(1, "", torch.set_num_threads, [torch.get_num_threads()]) as thread:
        waiting = [thread.submit(make, main.record_event()) for _ in range(depth + 1)]
        while waiting[0].result() is not end:  # raises here what was raised there
            yield waiting.pop(0).result()
            waiting.append(thread.submit(make, main.record_event()))


if __name__ == "__main__":
    print(*map(int, prefetch(torch.arange(6), "cuda" if torch.cuda.is_available() else "cpu")))
