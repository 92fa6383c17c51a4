"""prefetch.py: the next batch travels while you compute on this one."""

from itertools import chain

import torch


def prefetch(batches, device):
    """Yield batches on ``device``; the next travels while you compute on this one."""
    if device.type != "cuda":
        return (yield from batches)
    side, main, sent = torch.cuda.Stream(device), torch.cuda.current_stream(device), []
    for batch in chain(batches, [()]):  # an empty one at the end pushes out the last
        with torch.cuda.stream(side):
            there = [t.pin_memory().to(device, non_blocking=True) for t in batch]
            sent.append((there, side.record_event()))
        if len(sent) == 2:
            tensors, arrived = sent.pop(0)
            arrived.synchronize()  # the batch is there, and few pinned blocks are in use
            yield tensors
            side.wait_stream(main)  # no copy may overwrite what main still reads


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
batches = ((torch.full((64, 3, 32, 32), float(k)), torch.tensor(k)) for k in range(10))
total = sum((images * k).mean() for images, k in prefetch(batches, device))
print(f"10 batches, checksum {total:.0f}")
