"""Train a small network on MNIST, as a whole in one CUDA graph where there is a GPU.

    python speedrun.py --runs 10

prints how long the trainings take and how many test images are right. `search_speedrun.py` chooses
the settings, on a part of the training set; chapter 7.1 changes one at a time.
"""

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.datasets import MNIST

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ADAM = {"rate": 2e-2, "beta1": 0.7, "beta2": 0.9, "up": 0.25, "smoothing": 0.1}
BEST = {
    **{"filters": 8, "size": 5, "channels": [16, 64], "kernels": [3, 3], "hidden": 0},
    **{"dropout": False, "norm": True, "memory": 0.1, "out": 0.0, "half": True, "last": True},
    **{"optimizer": "adam", **ADAM, "muon": 5.0, "average": 0.0, "shift": 0},
    **{"batch": 512, "steps": 98, "mode": "whole"},
    **{"compiled": True, "options": None, "own": False},
}


def cosines(size: int, count: int) -> Tensor:
    """The `count` smoothest patterns of `size` x `size` pixels: products of two cosines."""
    at = math.pi / size * (torch.arange(size) + 0.5)
    waves = F.normalize(torch.stack([torch.cos(at * k) for k in range(size)]))
    pairs = sorted((i * i + j * j, i, j) for i in range(size) for j in range(size))[:count]
    return torch.stack([torch.outer(waves[i], waves[j]) for _, i, j in pairs])


def first_layer(images: Tensor, patterns: Tensor) -> Tensor:
    """Bytes (n, 28, 28) to features (n, 2 * patterns, 14, 14), for all images at once.

    Correlates with each pattern, then takes the largest and the smallest value of 2 x 2 places.
    Patterns moved by one pixel are patterns of size + 1: one product, no convolution.
    """
    count, size = patterns.shape[:2]
    moved = [F.pad(patterns, (i, 1 - i, j, 1 - j)) for i in (0, 1) for j in (0, 1)]
    weights = torch.stack(moved).view(4 * count, (size + 1) ** 2)
    edge = size // 2
    pixels = (images.to(patterns.dtype) - 33.3) / 78.6
    pixels = F.pad(pixels, (edge,) * 4, value=-33.3 / 78.6)
    patches = pixels.unfold(1, size + 1, 2).unfold(2, size + 1, 2)
    found = (patches.reshape(-1, (size + 1) ** 2) @ weights.T).view(len(images), 14, 14, 4, count)
    both = torch.cat([found.amax(3), -found.amin(3)], -1).relu()
    return both.permute(0, 3, 1, 2)


def shapes(c: SimpleNamespace) -> list[tuple[int, ...]]:
    """Shapes of all weights: a matrix or filters, then a bias, for each layer."""
    found, width, side = [], 2 * c.filters or 1, 14 if c.filters else 28
    for channels, kernel in zip(c.channels, c.kernels, strict=True):
        found += [(channels, width, kernel, kernel), (channels,)]
        width, side = channels, (side - (kernel - 1 if kernel == 5 else 0)) // 2
    for out in [c.hidden] * (c.hidden > 0) + [10]:
        found += [(out, width * side * side), (out,)]
        width, side = out, 1
    return found


def unpack(flat: Tensor, parts: list[tuple[int, ...]]) -> list[Tensor]:
    """A vector as tensors of these shapes."""
    pieces = flat.split([math.prod(part) for part in parts])
    return [piece.view(part) for piece, part in zip(pieces, parts, strict=True)]


def network(c, flat: Tensor, x: Tensor, running: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logits, and what batch norm measured; with `running`, that is used instead, as in eval()."""
    learning, dtype = running is None, torch.bfloat16 if c.half else torch.float32
    layers = unpack(flat, shapes(c))
    measured, kept = [], []
    if c.norm and not learning:
        kept = list(running.split([n for n in c.channels for _ in (1, 2)]))
    for kernel in c.kernels:
        weight, bias, layers = layers[0].to(dtype), layers[1], layers[2:]
        if c.last:
            weight = weight.contiguous(memory_format=torch.channels_last)
        x = F.conv2d(x, weight, None if c.norm else bias.to(dtype), padding=int(kernel == 3))
        if c.dropout and learning and len(layers) == 4:
            x = F.dropout2d(x)
        x = F.max_pool2d(x, 2)
        if c.norm:
            x = x.float()
            mean, var = kept[:2] if kept else torch.var_mean(x, (0, 2, 3), correction=0)[::-1]
            measured, kept = [*measured, mean, var], kept[2:]
            x = (x - mean[:, None, None]) * torch.rsqrt(var + 1e-5)[:, None, None]
            x = (x + bias[:, None, None]).to(dtype)
        x = F.relu(x)
    x = (x.permute(0, 2, 3, 1) if c.last else x).flatten(1)  # as it lies in memory
    if c.hidden:
        x = F.relu(F.linear(x, layers[0].to(dtype), layers[1].to(dtype)))
        x, layers = F.dropout(x) if c.dropout and learning else x, layers[2:]
    logits = F.linear(x, layers[0].to(dtype)).float() + layers[1]
    return logits, torch.cat([part.detach() for part in measured] or [flat[:1].detach()])


def plan(c: SimpleNamespace) -> Tensor:
    """One row for each step: the numbers that change, or that a search wants to change."""
    rows = []
    for i in range(c.steps):
        peak = max(c.up * c.steps, 1e-9)
        rate = c.rate * (1.0 if c.up < 0 else min((i + 1) / peak, (c.steps - i) / (c.steps - peak)))
        shares = [1 - c.beta1 ** (i + 1), 1 - c.beta2 ** (i + 1), max(c.memory, 1 / (i + 1))]
        averaged = 1 / max(1, i + 2 - c.steps * (1 - c.average))
        rows.append([rate, c.beta1, c.beta2, *shares, c.smoothing, averaged])
    return torch.tensor(rows)  # rows of 32 bytes: the compiler wants aligned addresses


def bounds(c: SimpleNamespace) -> Tensor:
    """How large each weight may be at the start: LeCun's bound for a layer, 0 for biases."""
    parts = shapes(c)
    found = [0.0 if len(part) == 1 else (3 / math.prod(part[1:])) ** 0.5 for part in parts]
    found[-2] *= c.out
    each = zip(parts, found, strict=True)
    return torch.cat([torch.full((math.prod(part),), bound) for part, bound in each])


def adam(c, flat, state, grad, row):
    """One step of Adam on the vector of all weights."""
    first, second = state
    first.mul_(row[1]).add_(grad * (1 - row[1]))
    second.mul_(row[2]).add_(grad * grad * (1 - row[2]))
    flat.sub_(row[0] * (first / row[3]) / ((second / row[4]).sqrt() + 1e-8))


def sgd(c, flat, state, grad, row):
    """One step of SGD, with Nesterov's momentum if beta1 is not 0."""
    first, _ = state
    first.mul_(row[1]).add_(grad)
    flat.sub_(row[0] * (grad + row[1] * first))


def orthogonal(g: Tensor) -> Tensor:
    """A matrix whose singular values are all near 1, and its directions those of g: Muon's step."""
    x = g.bfloat16() / (g.norm() + 1e-7)
    x = x.T if g.shape[0] > g.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (2.0315 * a @ a - 4.775 * a) @ x
    return (x.T if g.shape[0] > g.shape[1] else x).float()


def muon(c, flat, state, grad, row):
    """Muon for the convolutions, at `muon` times the rate; Adam for all that is left."""
    before, first = flat.clone(), state[0]
    adam(c, flat, state, grad, row)
    parts = shapes(c)
    old, new = unpack(before, parts), unpack(flat, parts)
    for g, m, w, to in zip(unpack(grad, parts), unpack(first, parts), old, new, strict=True):
        if g.dim() == 4:
            mixed = row[1] * m / (1 - row[1]) + g  # Nesterov's momentum; Adam's has 1 - beta1
            length = max(1, len(g) / g[0].numel()) ** 0.5
            change = c.muon * length * orthogonal(mixed.flatten(1)).view_as(w)
            to.copy_(w - row[0] * change)


RULES = {"adam": adam, "sgd": sgd, "muon": muon}


def shifted(images: Tensor, most: int) -> Tensor:
    """Each image moved by up to `most` pixels, at random, in both directions."""
    n, at = len(images), torch.arange(28, device=images.device)
    by = torch.randint(0, 2 * most + 1, (2, n, 1), device=images.device) + at
    row = torch.arange(n, device=images.device)[:, None, None]
    return F.pad(images, (most,) * 4)[row, by[0][:, :, None], by[1][:, None, :]]


class Race:
    """A training that can be run many times: weights drawn, images shuffled, all steps made."""

    def __init__(self, images: Tensor, labels: Tensor, **settings):
        self.c = c = SimpleNamespace(**{**BEST, **settings})
        self.images, self.labels = images, labels
        dtype = torch.bfloat16 if c.half else torch.float32
        self.patterns = cosines(c.size, c.filters).to(images.device, dtype) if c.filters else None
        self.bounds = bounds(c).to(images.device)
        self.flat = torch.zeros_like(self.bounds)
        self.slow = torch.zeros_like(self.bounds)  # the average of the last weights
        self.state = [torch.zeros_like(self.flat) for _ in (1, 2)]
        self.running = torch.zeros(2 * sum(c.channels) if c.norm else 1, device=images.device)
        self.rows = plan(c).to(images.device)
        self.step, self.features = self._step, self._features
        if c.compiled:
            self.step = torch.compile(self._step, dynamic=False, options=c.options)
            self.features = torch.compile(self._features, dynamic=False)
        self.graph, self.seconds = None, {}
        if images.is_cuda and c.mode != "eager":
            self._capture()

    def _features(self, images):
        if self.c.filters:
            return first_layer(images, self.patterns)
        dtype = torch.bfloat16 if self.c.half else torch.float32
        x = ((images[:, None].float() - 33.3) / 78.6).to(dtype)
        return x.contiguous(memory_format=torch.channels_last) if self.c.last else x

    def _loss(self, flat, x, y, row):
        logits, measured = network(self.c, flat, x)
        log = F.log_softmax(logits, 1)
        right = log.gather(1, y[:, None]).mean()
        return -(1 - row[6]) * right - row[6] * log.mean(), measured

    def _step(self, flat, state, running, x, y, row):
        if self.c.compiled:
            grad, measured = torch.func.grad(self._loss, has_aux=True)(flat, x, y, row)
        else:
            with torch.enable_grad():
                leaf = flat.detach().requires_grad_()
                loss, measured = self._loss(leaf, x, y, row)
                (grad,) = torch.autograd.grad(loss, leaf)
        with torch.no_grad():
            RULES[self.c.optimizer](self.c, flat, state, grad, row)
            running.add_((measured - running) * row[5])
            if self.c.average:
                self.slow.add_((flat - self.slow) * row[7])

    @torch.no_grad()
    def begin(self):
        """Draw weights, shuffle the images, and apply the first layer to all that are used."""
        self.flat.copy_((torch.rand_like(self.flat) * 2 - 1) * self.bounds)
        for each in self.state:
            each.zero_()
        used = self.c.steps * self.c.batch
        order = torch.rand(len(self.images), device=self.images.device).argsort()
        order = order.repeat(-(-used // len(order)))[:used]
        self.y = self.labels[order]
        if self.c.own:
            from speedrun_kernel import first_layer_at_once

            self.x = first_layer_at_once(self.images, order, self.patterns)
        else:
            images = self.images[order]
            self.x = self.features(shifted(images, self.c.shift) if self.c.shift else images)

    def batch(self, i):
        """What step i reads: images, labels, numbers. Parts of larger tensors, nothing is moved."""
        part = slice(i * self.c.batch, (i + 1) * self.c.batch)
        return self.x[part], self.y[part], self.rows[i]

    def make_step(self, *batch):
        with torch.no_grad():
            self.step(self.flat, self.state, self.running, *batch)

    def go(self):
        """The whole training."""
        self.begin()
        for i in range(self.c.steps):
            self.make_step(*self.batch(i))
        self.end()

    @torch.no_grad()
    def end(self):
        if self.c.average:
            self.flat.copy_(self.slow)

    def _capture(self):
        start = time.perf_counter()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.begin()
            for i in range(3):
                self.make_step(*self.batch(i))
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        warm = time.perf_counter()
        self.graph = torch.cuda.CUDAGraph()
        if self.c.mode == "whole":
            with torch.cuda.graph(self.graph):
                self.go()
        else:
            self.fixed = [part.clone() for part in self.batch(0)]
            with torch.cuda.graph(self.graph):
                self.make_step(*self.fixed)
        torch.cuda.synchronize()
        self.seconds = {"first steps": warm - start, "capture": time.perf_counter() - warm}

    def replay_steps(self):
        """The same, with a graph of one step."""
        self.begin()
        for i in range(self.c.steps):
            for inside, new in zip(self.fixed, self.batch(i), strict=True):
                inside.copy_(new)
            self.graph.replay()
        self.end()

    def change(self, **settings) -> None:
        """Other numbers for the same graph: rate, beta1, up, smoothing, memory, out and so on."""
        self.c.__dict__.update(settings)
        self.bounds.copy_(bounds(self.c))
        self.rows.copy_(plan(self.c))

    def run(self, seed: int) -> float:
        """Train; return milliseconds from the data in memory to the last weight."""
        wait = torch.cuda.synchronize if self.images.is_cuda else lambda: None
        wait()
        start = time.perf_counter()
        torch.manual_seed(seed)
        if self.graph is None:
            self.go()
        elif self.c.mode == "whole":
            self.graph.replay()
        else:
            self.replay_steps()
        wait()
        return 1e3 * (time.perf_counter() - start)

    @torch.no_grad()
    def right(self, images: Tensor, labels: Tensor) -> float:
        """Percentage of these images that the weights get right, batch norm as in eval()."""
        found = 0
        for x, y in zip(images.split(2000), labels.split(2000), strict=True):
            logits, _ = network(self.c, self.flat, self._features(x), self.running)
            found += (logits.argmax(1) == y).sum()
        return 100 * found.item() / len(labels)


def mnist(train: bool) -> tuple[Tensor, Tensor]:
    """Images (n, 28, 28) as bytes and labels, on the device."""
    default = Path(__file__).resolve().parents[2] / "data"
    found = MNIST(os.environ.get("DATA_ROOT") or default, train, download=True)
    return found.data.to(DEVICE), found.targets.to(DEVICE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, instead of BEST")
    arguments = parser.parse_args()
    race = Race(*mnist(True), **arguments.settings)
    runs = [(race.run(seed), race.right(*mnist(False))) for seed in range(arguments.runs)]
    ms, right = zip(*runs, strict=True)
    print(f"{statistics.median(ms):.2f} ms, {statistics.mean(right):.3f}% right, {DEVICE}")


if __name__ == "__main__":
    main()
