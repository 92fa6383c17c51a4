"""resume.py: a checkpoint is checked and compared, and only then loaded."""

import contextlib
import zipfile

import torch

LATER = "maximize", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"


def gist(states, but=(*LATER, "initial_lr", "verbose", "_is_initial")):
    """What must agree: shapes, sizes of groups, and options, but those that come with versions."""
    yield from (k if isinstance(s, dict) else f"{k}, no dictionary" for k, s in states.items())
    for name, s in filter(lambda item: isinstance(item[1], dict), states.items()):
        yield from (f"{name}.{k} {tuple(v.shape)}" for k, v in s.items() if torch.is_tensor(v))
        for i, g in enumerate(s.get("param_groups", [s] * bool({"_last_lr", "scale"} & {*s}))):
            yield f"{name}[{i}]: {len(g.get('params', ()))} parameters, {sorted(g.keys() - but)}"


def resume(path, **parts):
    """Compare, then load what `save` wrote; if a part raises, all get their old states back.

    Parts are objects with a state dict, or dictionaries, which get new tensors, on the CPU; a
    dictionary must have its own tensors' names and shapes before, but not those deeper in it.
    """
    with open(path, "rb") as file, contextlib.ExitStack() as undo:
        if not zipfile.is_zipfile(file) or zipfile.ZipFile(file).testzip():
            raise ValueError(f"{path} is damaged or incomplete: take an older checkpoint")
        saved = {**torch.load(path, map_location="cpu", weights_only=True)}
        now = {k: p.state_dict() if hasattr(p, "state_dict") else {**p} for k, p in parts.items()}
        if any(d := [sorted({*gist(s)} - {*gist(t)})[:5] for s, t in [(saved, now), (now, saved)]]):
            raise ValueError(f"{path} does not fit, nothing was loaded: it has {d[0]}, not {d[1]}")
        now = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("cpu", copy=True), now)
        loads = {k: getattr(p, "load_state_dict", 0) or p.update for k, p in parts.items()}
        for k in sorted(parts, key=lambda k: isinstance(parts[k], dict)):  # last: no dict refuses
            undo.push(lambda e, *_, k=k: e and loads[k](now[k]) and None), loads[k](saved[k])


if __name__ == "__main__":
    model = torch.nn.PReLU(device=torch.accelerator.current_accelerator(True))
    torch.save({"m": model.state_dict()}, "run.pt"), resume("run.pt", m=model), print("resumed")
