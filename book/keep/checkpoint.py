"""checkpoint.py: a checkpoint is written whole or not at all."""

import os
from contextlib import ExitStack, suppress
from pathlib import Path

import torch


def save(path, **parts):
    """Write the state of each part (model, optimizer, ..., or a dict), whole or not at all.

    A dict holds what resume takes (torch.load, weights_only=True): tensors, strings, numbers of
    Python. NumPy's and paths are refused. Of several ranks, only the first writes to a path.
    """
    states = {k: p.state_dict() if hasattr(p, "state_dict") else p for k, p in parts.items()}
    partial = Path(f"{path}.partial")
    try:
        with open(partial, "wb") as file:
            torch.save(states, file)
            file.flush(), os.fsync(file)  # the bytes are on the disk before the name is
        if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(partial):
            raise TypeError(f"resume would refuse {', '.join(sorted(unsafe))}")
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        # A full disk, or Ctrl-C, is but the context of the "enforce fail" that torch.save raises.
        why = (error.__context__ or error) if "enforce fail" in str(error) else error
        said = OSError(f"{path} was not written, what it held is still there: {why}")
        raise (said if isinstance(why, Exception) else why) from None
    with suppress(OSError), ExitStack() as stack:  # the new name, too, should outlive a power cut
        stack.callback(os.close, folder := os.open(partial.parent, os.O_RDONLY))
        os.fsync(folder)  # some network disks cannot, nor can Windows


if __name__ == "__main__":
    save("run.pt", model=torch.nn.Linear(3, 2, device=torch.accelerator.current_accelerator(True)))
    print("saved:", ", ".join(torch.load("run.pt", map_location="cpu", weights_only=True)))
