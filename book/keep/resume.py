"""resume.py: a checkpoint is checked and compared, and only then loaded."""

import zipfile

import torch


def outline(states):
    """What must agree: the parts, their tensors' shapes, the sizes of an optimizer's groups."""
    found = set()
    for name, state in states.items():
        found.add(name if state else f"{name} (empty)")
        found |= {f"{name}.{k} {tuple(v.shape)}" for k, v in state.items() if torch.is_tensor(v)}
        for number, group in enumerate(state.get("param_groups", ())):
            found.add(f"{name} of {len(group['params'])} parameters in group {number}")
    return found


def resume(path, **parts):
    """Put what `save` wrote back into the parts, each on its own device: into all or none."""
    if not zipfile.is_zipfile(path) or zipfile.ZipFile(path).testzip():
        raise ValueError(f"{path} is damaged or incomplete: take an older checkpoint")
    states = torch.load(path, map_location="cpu", weights_only=True)
    there, here = outline(states), outline({n: part.state_dict() for n, part in parts.items()})
    if there != here:
        only = f"the file alone has {sorted(there - here)[:5]}, the run {sorted(here - there)[:5]}"
        raise ValueError(f"{path} does not fit, and nothing was loaded: {only}")
    for name, part in parts.items():
        part.load_state_dict(states[name])


if __name__ == "__main__":
    model = torch.nn.Linear(3, 2, device=torch.accelerator.current_accelerator(True))
    torch.save({"model": model.state_dict()}, "run.pt")
    resume("run.pt", model=model)
    print("resumed:", ", ".join(sorted(outline({"model": model.state_dict()}))))
