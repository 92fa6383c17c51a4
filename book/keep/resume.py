"""resume.py: a checkpoint is checked and compared, and only then loaded."""

import zipfile

import torch

# Options that tell many optimizers, schedulers and scalers apart, in any version of torch.
KINDS = "betas momentum alpha rho scale T_max T_0 step_size milestones mode lr_lambdas _schedulers"
KINDS = {*KINDS.split(), "_milestones", "factor", "end_factor", "power", "gamma", "total_steps"}


def outline(states):
    """What must agree: tensors' shapes, and of optimizers' groups the size and kind."""
    for name, state in filter(lambda item: isinstance(item[1], dict), states.items()):
        yield from (f"{name}.{k} {tuple(v.shape)}" for k, v in state.items() if torch.is_tensor(v))
        for i, g in enumerate(state.get("param_groups", [state])):  # a scheduler has none
            yield f"{name}[{i}]: {len(g.get('params', ()))} parameters, {sorted(KINDS & g.keys())}"


def resume(path, **parts):
    """Compare, then put what `save` wrote back into the parts, each on its own device."""
    with open(path, "rb") as file:  # a file that is missing is not damaged
        if not zipfile.is_zipfile(file) or zipfile.ZipFile(file).testzip():
            raise ValueError(f"{path} is damaged or incomplete: take an older checkpoint")
    states = {**torch.load(path, map_location="cpu", weights_only=True)}
    now = {k: p.state_dict() if hasattr(p, "state_dict") else {**p} for k, p in parts.items()}
    there, here = ({*s, *outline(s)} for s in (states, now))
    if there != here:
        only = f"the file alone has {sorted(there - here)[:5]}, the run {sorted(here - there)[:5]}"
        raise ValueError(f"{path} does not fit, and nothing was loaded: {only}")
    for name, part in parts.items():
        getattr(part, "load_state_dict", getattr(part, "update", None))(states[name])


if __name__ == "__main__":
    model = torch.nn.Linear(3, 2, device=torch.accelerator.current_accelerator(True))
    torch.save({"model": model.state_dict()}, "run.pt")
    print("resumed:", resume("run.pt", model=model) or ", ".join(model.state_dict()))
