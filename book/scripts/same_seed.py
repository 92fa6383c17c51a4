"""Train three networks from the same seed whenever asked, and say what came out.

Started by a page, one process for each setting, so that no two settings share a cache::

    python same_seed.py cudnn.benchmark

It answers each line on its standard input ("start", "warm up", "train") with a line of JSON.
"""

import argparse
import hashlib
import json
import sys
import time

import torch
import torch.utils.deterministic
from torch import nn
from torch.nn import functional as F

SETTINGS = (
    "default",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "use_deterministic_algorithms",
    "deterministic, not filled",
)
STEPS = {"MNIST CNN": 20, "ResNet-18": 6, "Transformer": 6}


def choose(setting):
    """Switch on what ``setting`` says; the default is left as PyTorch has it."""
    torch.backends.cudnn.benchmark = setting == "cudnn.benchmark"
    torch.backends.cudnn.deterministic = setting == "cudnn.deterministic"
    if setting in SETTINGS[3:]:
        torch.use_deterministic_algorithms(True)
    if setting == SETTINGS[4]:
        torch.utils.deterministic.fill_uninitialized_memory = False


class Block(nn.Module):
    """Causal attention, then a two-layer MLP, each added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def mnist_cnn():
    """The book's MNIST network in float32, 100 images."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    return model, torch.randn(100, 1, 28, 28), torch.arange(100) % 10


def resnet():
    """torchvision's ResNet-18 in float32, 64 images."""
    from torchvision.models import resnet18

    return resnet18(), torch.randn(64, 3, 224, 224), torch.arange(64)


def transformer():
    """Four blocks of width 512 under bfloat16 autocast, 8 texts of 512 tokens."""
    blocks = [Block(512, 8) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(8192, 512), *blocks, nn.Linear(512, 8192))
    tokens = torch.randint(8192, (8, 513))
    return model, tokens[:, :-1], tokens[:, 1:]


class Case:
    """One network on ``device`` with its data, to be trained from the same state every time."""

    def __init__(self, make, device):
        torch.manual_seed(0)
        model, inputs, targets = make()
        self.model, self.device = model.to(device), device
        self.inputs, self.targets = inputs.to(device), targets.to(device)
        self.half = make is transformer
        self.initial = {name: t.clone() for name, t in self.model.state_dict().items()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            outputs = self.model(self.inputs)
            loss = F.cross_entropy(outputs.flatten(0, -2), self.targets.flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train(self, steps):
        """Milliseconds per step, and a digest of all parameters; or the error, and None."""
        self.model.load_state_dict(self.initial)
        self.wait()
        start = time.perf_counter()
        try:
            for _ in range(steps):
                loss = self.step()
        except RuntimeError as error:  # an operation that cannot be deterministic
            return None, str(error).splitlines()[0][:100]
        self.wait()
        ms = (time.perf_counter() - start) / steps * 1e3
        assert torch.isfinite(loss), "a loss that is not finite would hide differences"
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        return round(ms, 3), digest.hexdigest()[:12]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    choose(options.setting)
    makers = {"MNIST CNN": mnist_cnn, "ResNet-18": resnet, "Transformer": transformer}
    cases = {}
    for line in sys.stdin:
        answer = {}
        if line.strip() == "start":
            cases = {name: Case(make, options.device) for name, make in makers.items()}
        elif line.strip() == "warm up":
            for case in cases.values():
                case.train(3)
        else:
            answer = {name: case.train(STEPS[name]) for name, case in cases.items()}
        if options.device == "cuda":
            torch.cuda.empty_cache()  # the processes share one GPU
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
