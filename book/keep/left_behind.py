"""left_behind.py: what .to() and state_dict() do not see."""

from collections import abc, deque

import torch


def left_behind(model):
    """Which tensors and layers in `model` are not seen, by name, and what does not see them.

    Opens containers and objects with a `__dict__`, but no function, partial or class attribute.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    missed = dict.fromkeys(sorted(tensors.keys() - model.state_dict().keys()), "state_dict()")
    own = {id(t) for t in (*tensors.values(), *model.modules())}
    todo, opened = list(model.named_modules()), set()
    for name, t in todo:  # which grows as modules, containers and objects are opened
        if isinstance(t, torch.Tensor | torch.nn.Module) and id(t) not in own:
            missed[name] = ".to() and state_dict()"
        elif id(t) not in opened and not isinstance(t, (type, type(torch))):  # no Python module
            opened.add(id(t))  # once, or a cycle would never end
            names = (*getattr(t, "__dict__", ()), *getattr(t, "__dataclass_fields__", ()))
            held = t if isinstance(t, abc.Mapping) else {k: getattr(t, k, None) for k in names}
            held = dict(enumerate(t)) if isinstance(t, (list, tuple, set, deque)) else held
            held = {n if torch.is_tensor(k) else k: v for n, (k, v) in enumerate(held.items())}
            # What hooks (of prune, weight_norm) compute again before each call needs no move.
            hooks = getattr(t, "_forward_pre_hooks", {}).values()
            again = {getattr(h, "_tensor_name", getattr(h, "name", None)) for h in hooks}
            todo += [(f"{name}.{k}".strip("."), v) for k, v in held.items() if k not in again]
    return missed


if __name__ == "__main__":
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = torch.nn.Linear(3, 2).to(device)
    model.scale = torch.ones(2)  # a plain attribute
    print("left behind:", left_behind(model))
