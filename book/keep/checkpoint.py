"""checkpoint.py: whole or not at all."""

import os
import zipfile

import torch


def save(path, **parts):
    """Write the state of every part (model, optimizer, ...), whole or not at all."""
    partial = f"{path}.partial"
    try:
        torch.save({name: part.state_dict() for name, part in parts.items()}, partial)
        with open(partial, "rb+") as file:
            os.fsync(file)  # the bytes are on the disk before the name is
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):  # something failed
            os.remove(partial)


def resume(path, **parts):
    """Put what `save` wrote back into the parts, each on its own device."""
    if not zipfile.is_zipfile(path) or zipfile.ZipFile(path).testzip():
        raise ValueError(f"{path} is damaged or incomplete: take an older checkpoint")
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])


model = torch.nn.Linear(3, 2, device="cuda" if torch.cuda.is_available() else "cpu")
save("run.pt", model=model)
resume("run.pt", model=model)
print("saved and resumed:", ", ".join(torch.load("run.pt", map_location="cpu")))
