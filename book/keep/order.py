"""order.py: seed and step decide the order of the data, so there is nothing to save."""

import random
from itertools import islice

import torch
from torch.utils.data import DataLoader, Sampler


class Order(Sampler):
    """Full batches of row numbers without end, a new order each epoch: for one loop, by steps.

    Build it after `resume`, with the step that came back, and pass it as `batch_sampler`.
    An epoch leaves out the rows that fill no batch. It knows no ranks: give it the batch of all
    of them, a multiple of their number, and let each take batch[rank::ranks].
    """

    def __init__(self, rows, batch, seed=0, step=0):
        if rows < batch:
            raise ValueError(f"{rows} rows make no batch of {batch}")
        self.rows, self.batch, self.seed, self.step, self.begun = rows, batch, seed, step, False

    def __iter__(self):
        if self.begun:  # it would begin at `step` again
            raise RuntimeError("Order has no end and no second loop: count steps, not epochs")
        self.begun = True
        epoch, done = divmod(self.step, self.rows // self.batch)  # without a smaller last one
        while True:  # a seed of its own for each epoch of each run (torch takes 32 bits of it)
            mixed = random.Random(f"{self.seed}, {epoch}").getrandbits(32)
            order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(mixed))
            yield from (b.tolist() for b in order.split(self.batch)[done : self.rows // self.batch])
            epoch, done = epoch + 1, 0


if __name__ == "__main__":
    data = torch.arange(10, device=torch.accelerator.current_accelerator(True))
    for start in (0, 3):  # step 3 is the first of the second epoch
        order, own = Order(len(data), 3, seed=7, step=start), torch.Generator()
        loader = DataLoader(data, batch_sampler=order, generator=own)  # or it draws from the CPU's
        print(f"from step {start}:", [batch.tolist() for batch in islice(loader, 5 - start)])
