"""live_bytes.py: the memory of a training step, without a GPU."""

import weakref

import torch
from torch._subclasses import FakeTensorMode


class LiveBytes(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.alive, self.history = weakref.WeakKeyDictionary(), []  # {storage: bytes}, sums

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, out if isinstance(out, list | tuple) else [out]):
            self.alive[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        self.history.append(sum(-(-n // 512) * 512 for n in self.alive.values()))  # in blocks
        return out


def train(device):
    model = torch.nn.Linear(4096, 50_000, device=device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)  # as a GPU does by default
    for _ in range(2):  # the first step has no optimizer state yet
        optimizer.zero_grad()
        model(torch.ones(1024, 4096, device=device)).logsumexp(1).sum().backward()
        optimizer.step()


with FakeTensorMode(), LiveBytes() as live:
    train("cpu")
if torch.cuda.is_available():
    train("cuda")  # without a GPU, 0 is measured
print(f"peak {max(live.history) >> 20} MiB, measured {torch.cuda.max_memory_allocated() >> 20}")
