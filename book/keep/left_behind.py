"""left_behind.py: what .to() and state_dict() do not see."""

from collections import abc, deque

import torch


def left_behind(model):
    """Which tensors and layers in `model` are not seen, by name, and what does not see them.

    Opens containers and objects with a `__dict__`, but no function, partial or class attribute.
    What a module moves in an `_apply` of its own is listed all the same.
    """
    saved, todo, opened = model.state_dict().keys(), list(model.named_modules()), set()
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())  # resharded by now
    missed = dict.fromkeys(sorted(tensors.keys() - saved), "state_dict()")
    own = {id(t) for t in (*tensors.values(), *model.modules())}
    for name, t in todo:  # which grows as modules, containers and objects are opened
        if isinstance(t, torch.Tensor | torch.nn.Module) and id(t) not in own:
            missed[name] = ".to() and state_dict()"
        # Not opened: classes, Python modules, and what fully_shard keeps for itself.
        elif not (id(t) in opened or "__composable_" in name or isinstance(t, (type, type(torch)))):
            opened.add(id(t))  # once, or a cycle would never end
            names = (*getattr(t, "__dict__", ()), *getattr(t, "__dataclass_fields__", ()))
            has = t if isinstance(t, abc.Mapping) else {k: getattr(t, k, None) for k in names}
            has = has | dict(enumerate(t)) if isinstance(t, (list, tuple, abc.Set, deque)) else has
            has = {n if torch.is_tensor(k) else k: v for n, (k, v) in enumerate(has.items())}
            # What hooks (of prune, weight_norm) compute again before each call needs no move.
            hooks = getattr(t, "_forward_pre_hooks", {}).values()
            again = {getattr(h, "_tensor_name", getattr(h, "name", None)) for h in hooks}
            todo += [(f"{name}.{k}".strip("."), v) for k, v in has.items() if k not in again]
    return missed


if __name__ == "__main__":
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = torch.nn.Linear(3, 2).to(device)
    model.scale = torch.ones(2)  # a plain attribute
    print("left behind:", left_behind(model))
