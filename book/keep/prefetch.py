"""prefetch.py: the next batches are made, pinned and sent while you compute on this one."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils._pytree import tree_map_only as mapped

SIDES = {}  # one stream for all calls (by GPU and priority), or each would cache its own memory


def prefetch(batches, device, depth=2, priority=0):
    """Yield batches (tensors in dicts, lists, tuples; no UserDict) on ``device``, some ahead."""
    if torch.device(device).type != "cuda":  # no side stream: one after the other
        return (yield from (mapped(torch.Tensor, lambda t: t.to(device), b) for b in batches))
    main, batches, end = torch.cuda.current_stream(device), iter(batches), object()
    side = SIDES.setdefault((main.device, priority), torch.cuda.Stream(main.device, priority))

    def send(t):
        t = (t.pin_memory() if t.is_cpu else t).to(main.device, non_blocking=True)
        return t.record_stream(main) or t  # nobody gets its memory before main has read it

    def make(used):  # runs in the thread
        torch.cuda.set_stream(side), side.wait_event(used)  # on the GPU: depth + 2 at most
        batch = mapped(torch.Tensor, send, next(batches, end))
        side.record_event(torch.cuda.Event(blocking=True)).synchronize()  # now it may be refilled
        return batch

    # It pins on as many cores as you compute on: a DataLoader that pins leaves new threads one.
    with ThreadPoolExecutor(1, "", torch.set_num_threads, [torch.get_num_threads()]) as thread:
        waiting = [thread.submit(make, main.record_event()) for _ in range(depth + 1)]
        while waiting[0].result() is not end:  # raises here what was raised there
            yield waiting.pop(0).result()
            waiting.append(thread.submit(make, main.record_event()))


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print([x.sum().item() for x in prefetch(map(torch.ones, range(6)), device)])
