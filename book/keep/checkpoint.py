"""checkpoint.py: a checkpoint is written whole or not at all."""

import contextlib
import os

import torch


def save(path, **parts):
    """Write the state of each part (model, optimizer, ..., or a dict), whole or not at all.

    A dict holds what resume takes (torch.load, weights_only=True): tensors, strings, numbers of
    Python. Convert NumPy's numbers and paths. Of several ranks, only the first writes to a path.
    """
    states = {k: p.state_dict() if hasattr(p, "state_dict") else p for k, p in parts.items()}
    partial = f"{path}.partial"
    try:
        with open(partial, "wb") as file:
            torch.save(states, file)
            file.flush(), os.fsync(file)  # the bytes are on the disk before the name is
        os.replace(partial, path)
    except Exception as error:  # torch.save names a full disk only in its error's context
        why = error if isinstance(error, OSError) else error.__context__ or error
        raise OSError(f"{path} was not written, what it held is still there: {why}") from error
    finally:
        if os.path.exists(partial):  # something failed
            os.remove(partial)
    if os.name == "posix":  # the new name, too, should outlive a power cut
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        with contextlib.suppress(OSError):  # some network disks cannot
            os.fsync(folder)
        os.close(folder)


if __name__ == "__main__":
    save("run.pt", model=torch.nn.Linear(3, 2, device=torch.accelerator.current_accelerator(True)))
    print("saved:", ", ".join(torch.load("run.pt", map_location="cpu", weights_only=True)))
