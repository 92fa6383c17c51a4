"""left_behind.py: what .to() and state_dict() do not see."""

import torch
from torch import nn


def left_behind(model):
    """Names of the tensors and layers in `model` that .to() and state_dict() do not see."""
    seen = (*model.parameters(), *model.buffers(), *model.modules())
    known = {id(thing) for thing in seen}

    def hidden(name, value):
        if isinstance(value, torch.Tensor | nn.Module):
            return [] if id(value) in known else [name]
        pairs = value.items() if isinstance(value, dict) else ()
        pairs = enumerate(value) if isinstance(value, list | tuple) else pairs
        return [n for key, item in pairs for n in hidden(f"{name}[{key!r}]", item)]

    return [
        found
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        for found in hidden(f"{path}.{name}".strip("."), value)
    ]


device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
model = nn.Sequential(nn.Linear(3, 2)).to(device)
model[0].scale = torch.ones(2)  # a plain attribute
print("left behind:", left_behind(model))
