"""The training of speedrun.py with the first layer as one kernel of our own, and shifted images.

    python speedrun_fast.py '{"steps": 60}' --runs 3

prints milliseconds and the percentage of test images that are right, for each run, as JSON.
"""

import argparse
import json

import torch
from speedrun import Race, first_layer, mnist, shifted


class Faster(Race):
    """A training whose first layer, for all images, is one launch where there is a GPU."""

    def __init__(self, images, labels, **settings):
        self.ways = torch.arange(len(images), device=images.device)
        super().__init__(images, labels, **settings)

    @torch.no_grad()
    def begin(self):
        """Draw weights, shuffle and shift the images, and apply the first layer to all at once."""
        if not self.c.own:
            return super().begin()
        self.flat.copy_((torch.rand_like(self.flat) * 2 - 1) * self.bounds)
        for each in self.state:
            each.zero_()
        used = self.c.steps * self.c.batch
        order = torch.rand(len(self.images), device=self.images.device).argsort()
        order = order.repeat(-(-used // len(order)))[:used]
        self.y, images = self.labels[order], self.images[order]
        if self.c.shift:
            images = shifted(images, self.c.shift)
        if not images.is_cuda:
            self.x = first_layer(images, self.patterns)
            return None
        from speedrun_kernel import first_layer_at_once

        self.x = first_layer_at_once(images, self.ways[:used], self.patterns)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=json.loads, nargs="?", default={}, help="JSON")
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    race, test = Faster(*mnist(True), **arguments.settings), mnist(False)
    runs = [[race.run(seed), race.right(*test)] for seed in range(arguments.runs)]
    print(json.dumps({"runs": runs, **race.seconds}))


if __name__ == "__main__":
    main()
