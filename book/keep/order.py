"""order.py: seed and step decide the order of the data, so there is nothing to save."""

import random
from itertools import islice

import torch
from torch.utils.data import DataLoader, Sampler


class Order(Sampler):
    """Batches of row numbers without end, in a new order each epoch: for one loop, by steps.

    It knows no ranks: give it the batch of all of them, and let each take batch[rank::ranks].
    """

    def __init__(self, rows, batch, seed=0, step=0):
        self.rows, self.batch, self.seed, self.step, self.begun = rows, batch, seed, step, False

    def __iter__(self):
        if self.begun:  # it would begin at `step` again
            raise RuntimeError("Order has no end and no second loop: count steps, not epochs")
        self.begun = True
        epoch, done = divmod(self.step, -(-self.rows // self.batch))  # the last may be smaller
        while True:  # a seed of its own for each epoch of each run (torch takes 32 bits of it)
            mixed = random.Random(f"{self.seed}, {epoch}").getrandbits(32)
            order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(mixed))
            batches = order.split(self.batch)
            yield from (batch.tolist() for batch in batches[done:])
            epoch, done = epoch + 1, 0


if __name__ == "__main__":
    data = torch.arange(10, device=torch.accelerator.current_accelerator(True))
    for start in (0, 4):  # step 4 is the first of the second epoch
        order, own = Order(len(data), 3, seed=7, step=start), torch.Generator()
        loader = DataLoader(data, batch_sampler=order, generator=own)  # or it draws from dropout's
        steps = islice(enumerate(loader, start), 6 - start)  # the one loop of a training
        print(f"from step {start}:", [batch.tolist() for step, batch in steps])
