"""background.py: training stops for a copy to the host; a thread writes it, tied weights twice."""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch


def on_host(x):
    """A copy in host memory of each tensor in `x`, under its id, as `copy.deepcopy` takes them."""
    if isinstance(x, torch.Tensor):  # from this GPU to pinned memory, nobody waits
        here = x.is_cuda and x.get_device() == torch.cuda.current_device()
        return {id(x): x.detach().to("cpu", non_blocking=here, copy=True)}
    x = list(x.values()) if isinstance(x, dict) else x
    items = x if isinstance(x, list | tuple) else ()
    return {key: tensor for item in items for key, tensor in on_host(item).items()}


class Background:
    """`Background(save).save(path, model=model, ...)` writes in a thread; `wait()` at the end."""

    def __init__(self, save):
        self.write, self.pool, self.last = save, ThreadPoolExecutor(1), []

    def save(self, path, **parts):
        """Copy the state of each part; raise the error of the last file, once, if it had one.

        Tensors come to the host from dicts, lists and tuples, however deep, which keep their kind;
        other objects are deep-copied, with their tensors where they are.
        """
        self.wait()  # never two copies: they take as much memory as the state
        states = {k: p.state_dict() if hasattr(p, "state_dict") else p for k, p in parts.items()}
        s = copy.deepcopy(states, on_host(states))
        end = torch.cuda.is_available() and torch.cuda.current_stream().record_event()
        # The thread waits for the copies, not the training; if that fails, it writes nothing.
        self.last = [self.pool.submit(lambda: (end and end.synchronize()) or self.write(path, **s))]

    def wait(self):
        """Wait for the last file; raise what its thread raised, once."""
        return self.last.pop().result() if self.last else None


if __name__ == "__main__":
    writer = Background(lambda path, **states: print(f"a thread writes {path}:", *states))
    writer.save("run.pt", model=torch.nn.PReLU(device=torch.accelerator.current_accelerator(True)))
    writer.wait()
