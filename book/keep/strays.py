"""strays.py: tensors on the wrong device, and float64."""

import re
from collections import abc, deque

import torch


def strays(device, **things):
    """Say which tensors in ``things`` are not on ``device``, or are float64.

    Not those that a class holds for all its objects.
    """
    assert not any(isinstance(t, abc.Iterator) for t in things.values()), "make iterators lists"
    home = torch.empty(0, device=device).device  # "cuda" gets its number
    lines, todo, seen = [], list(things.items()), set()
    for name, t in todo:  # which grows as modules, containers and objects are opened
        if id(t) not in seen and not isinstance(t, (type, type(re))):  # no class, no Python module
            seen.add(id(t))  # once, or a cycle would never end
            count = re.search(r"\bstate\.\d+\.step$", name)  # Adam's, on the CPU on purpose
            if torch.is_tensor(t) and not count and (t.device != home or t.dtype == torch.float64):
                lines.append(f"{name}: {t.dtype} on {t.device}")
            names = (*getattr(t, "__dict__", ()), *getattr(t, "__dataclass_fields__", ()))
            held = t if isinstance(t, abc.Mapping) else {k: getattr(t, k, None) for k in names}
            held = dict(enumerate(t)) if isinstance(t, (list, tuple, abc.Set, deque)) else held
            held = {n if torch.is_tensor(k) else k: v for n, (k, v) in enumerate(held.items())}
            todo += [(f"{name}.{key}", value) for key, value in held.items()]
    return [re.sub(r"\._(parameters|buffers|modules)", "", line) for line in lines]


if __name__ == "__main__":
    home = "cuda" if torch.cuda.is_available() else "meta"  # which stands in for a GPU
    model = torch.nn.Sequential(torch.nn.Linear(3, 3)).to(home)
    model.scale = torch.ones(3)  # not registered: .to() leaves it on the CPU
    batch = {"x": torch.ones(2, 3), "y": torch.ones(2, dtype=torch.float64)}
    print("\n".join(strays(home, model=model, batch=batch)))
