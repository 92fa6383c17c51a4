"""order.py: seed and step decide the order of the data, so there is nothing to save."""

from itertools import islice

import torch
from torch.utils.data import DataLoader, Sampler


class Order(Sampler):
    """Batches of row numbers without end, in a new order each epoch, from any step on."""

    def __init__(self, rows, batch, seed=0, step=0):
        self.rows, self.batch, self.seed, self.step = rows, batch, seed, step

    def __iter__(self):
        epoch, done = divmod(self.step, -(-self.rows // self.batch))  # the last may be smaller
        while True:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            batches = torch.randperm(self.rows, generator=generator).split(self.batch)
            yield from (batch.tolist() for batch in batches[done:])
            epoch, done = epoch + 1, 0


if __name__ == "__main__":
    data = torch.arange(10, device=torch.accelerator.current_accelerator(True))
    for step in (0, 4):  # step 4 is the first of the second epoch
        loader = DataLoader(data, batch_sampler=Order(len(data), 3, seed=7, step=step))
        print(f"from step {step}:", [batch.tolist() for batch in islice(loader, 6 - step)])
