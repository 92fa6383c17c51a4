"""strays.py: tensors on the wrong device, and float64."""

import re

import torch
from torch import nn


def strays(device, **things):
    """Say which tensors in ``things`` are not on ``device``, or are float64."""
    home = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
    lines, todo, seen = [], list(things.items()), set()
    for name, t in todo:  # which grows as modules, dicts and lists are opened
        if torch.is_tensor(t) and (t.device != home or t.dtype == torch.float64):
            lines.append(f"{name}: {t.dtype} on {t.device}")
        inside = vars(t) if isinstance(t, nn.Module) else t
        if isinstance(inside, (list, tuple)):
            inside = dict(enumerate(inside))
        if isinstance(inside, dict) and id(t) not in seen:
            seen.add(id(t))
            todo += [(f"{name}.{key}", value) for key, value in inside.items()]
    return [re.sub(r"\._(parameters|buffers|modules)", "", line) for line in lines]


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(3, 3)).to(device)
model.scale = torch.ones(3)  # not registered: .to() leaves it on the CPU
y = torch.linspace(0, 1, 2, dtype=torch.float64, device=device)
batch = {"x": torch.ones(2, 3), "y": y}
print("\n".join(strays(device, model=model, batch=batch)))
