"""The training of speedrun.py, leaner; and a public recipe with the same engineering.

    python speedrun_lean.py '{"steps": 150, "stride": 2}' --runs 3

prints the milliseconds of each run and, with a GPU, what it took to prepare, as JSON.
"""

import argparse
import json
import math

import torch
from speedrun import BEST, mnist, plan, shapes, unpack
from speedrun_fast import Faster
from torch import nn
from torch.nn import functional as F

LEAN = {"pad": 16, "stride": 1, "fast": True, "public": False}  # beside speedrun's own settings


def logits_of(c, flat, x, running=None):
    """As speedrun's network, of one layer: with a stride in place of pooling; outputs padded."""
    dtype = torch.bfloat16 if c.half else torch.float32
    weight, bias, last, last_bias = unpack(flat, shapes(c))
    weight = weight.to(dtype)
    if c.last:
        weight = weight.contiguous(memory_format=torch.channels_last)
    x = F.conv2d(x, weight, stride=c.stride)
    x = (x if c.stride == 2 else F.max_pool2d(x, 2)).float()
    if running is None:
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    else:
        mean, var = running.chunk(2)
    x = (x - mean[:, None, None]) * torch.rsqrt(var + 1e-5)[:, None, None]
    x = F.relu((x + bias[:, None, None]).to(dtype))
    x = (x.permute(0, 2, 3, 1) if c.last else x).flatten(1)
    last = F.pad(last.to(dtype), (0, 0, 0, max(0, c.pad - 10)))
    logits = F.linear(x, last)[:, :10].float() + last_bias
    return logits, torch.cat([mean.detach(), var.detach()])


def public_shapes():
    """Weights of train_mnist_fast: two convolutions, two linear layers."""
    return [(24, 1, 5, 5), (24,), (32, 24, 3, 3), (32,), (256, 800), (256,), (10, 256), (10,)]


def public_logits(c, flat, x, running=None):
    """Its network, as a function of one vector of weights."""
    dtype = torch.bfloat16 if c.half else torch.float32
    parts = [part.to(dtype) for part in unpack(flat, public_shapes())]
    for weight, bias in (parts[:2], parts[2:4]):
        if c.last:
            weight = weight.contiguous(memory_format=torch.channels_last)
        x = F.relu(F.max_pool2d(F.conv2d(x, weight, bias), 2))
    x = F.relu(F.linear(x.flatten(1), *parts[4:6]))
    return F.linear(x, *parts[6:]).float(), flat[:1].detach()


def public_plan():
    """The rows of `plan` with the rates of its OneCycleLR."""
    c = argparse.Namespace(**BEST | {"steps": 235, "smoothing": 0.0})
    rows, weight = plan(c), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=1e-2, betas=(0.7, 0.9))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=235, cycle_momentum=False
    )
    for row in rows:
        row[0] = schedule.get_last_lr()[0]
        optimizer.step()
        if schedule.last_epoch < 234:
            schedule.step()
    return rows


class Lean(Faster):
    """A training whose first layer is two kernels of our own, and whose outputs are padded."""

    def __init__(self, images, labels, **settings):
        super().__init__(images, labels, **LEAN | settings)

    def _loss(self, flat, x, y, row):
        logits, measured = self.logits(flat, x)
        log = F.log_softmax(logits, 1)
        right = log.gather(1, y[:, None]).mean()
        return -(1 - row[6]) * right - row[6] * log.mean(), measured

    def logits(self, flat, x, running=None):
        return logits_of(self.c, flat, x, running)

    def features_of(self, images):
        """What the first layer makes of images as they are."""
        return self._features(images)

    @torch.no_grad()
    def begin(self):
        """Draw weights, shuffle and shift the images, and apply the first layer to all at once."""
        if not self.c.fast or not self.images.is_cuda:
            return super().begin()
        from speedrun_lean_kernels import first_layer_fast

        self.flat.copy_((torch.rand_like(self.flat) * 2 - 1) * self.bounds)
        for each in self.state:
            each.zero_()
        used = self.c.steps * self.c.batch
        order = torch.rand(len(self.images), device=self.images.device).argsort()
        order = order.repeat(-(-used // len(order)))[:used]
        by = None
        if self.c.shift:
            by = torch.randint(-self.c.shift, self.c.shift + 1, (2, used), device=order.device)
        self.y = self.labels[order]
        self.x = first_layer_fast(self.images, order, by, self.patterns)
        return None


class Public(Lean):
    """train_mnist_fast as one graph: its network, optimizer and rates; data ready beforehand."""

    def __init__(self, x, labels, **settings):
        self.ready = x
        super().__init__(x, labels, **{"batch": 256, "steps": 235, "filters": 0} | settings)

    def prepare(self):
        """Bounds of torch's own layers, rates of OneCycleLR, images as they are read."""
        layers, device, found = public_shapes(), self.ready.device, []
        for i, shape in enumerate(layers):  # a bias has its layer's bound
            fan_in = math.prod(layers[i - i % 2][1:])
            found.append(torch.full((math.prod(shape),), fan_in**-0.5))
        self.bounds, self.rows = torch.cat(found).to(device), public_plan().to(device)
        self.flat = torch.zeros_like(self.bounds)
        self.slow = torch.zeros_like(self.bounds)
        self.state = [torch.zeros_like(self.flat) for _ in (1, 2)]
        self.running = torch.zeros(1, device=device)
        self.x, self.y = self.features_of(self.ready), self.labels

    def _capture(self):
        self.prepare()
        self.begin()
        self.make_step(*self.batch(234))  # the last batch is smaller: compiled before the capture
        super()._capture()

    def logits(self, flat, x, running=None):
        return public_logits(self.c, flat, x)

    def features_of(self, x):
        x = x.to(torch.bfloat16 if self.c.half else torch.float32)
        return x.contiguous(memory_format=torch.channels_last) if self.c.last else x

    @torch.no_grad()
    def begin(self):
        """Draw the weights; its images are shuffled and normalized before the clock starts."""
        self.flat.copy_((torch.rand_like(self.flat) * 2 - 1) * self.bounds)
        for each in self.state:
            each.zero_()

    def batch(self, i):
        rows = slice(i * 256, min(60_000, (i + 1) * 256))
        return self.x[rows], self.y[rows], self.rows[i]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=json.loads, nargs="?", default={}, help="JSON")
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    kind = Public if arguments.settings.get("public") else Lean
    images, labels = mnist(True)
    x = (images[:, None].float() / 255 - 0.1307) / 0.3081 if kind is Public else images
    race = kind(x, labels, **arguments.settings)
    print(json.dumps({"ms": [race.run(seed) for seed in range(arguments.runs)], **race.seconds}))


if __name__ == "__main__":
    main()
