"""background.py: training stops for a copy to the host; a thread writes it, tied weights twice."""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch


def copied(x):
    """`x` as it is now, in host memory, however deep in it the tensors lie."""
    if isinstance(x, torch.Tensor):  # from this GPU to pinned memory, nobody waits
        here = x.is_cuda and x.get_device() == torch.cuda.current_device()
        return x.detach().to("cpu", non_blocking=here, copy=True)
    if isinstance(x, list | tuple):  # a named tuple is made by its _make
        return getattr(x, "_make", type(x))(map(copied, x))
    # A dict stays of its kind: a scheduler may hold a Counter. Other objects keep their device.
    x = copy.copy(x) if isinstance(x, dict) else copy.deepcopy(x)
    return (isinstance(x, dict) and dict.update(x, {k: copied(v) for k, v in x.items()})) or x


class Background:
    """`Background(save).save(path, model=model, ...)` writes in a thread; `wait()` at the end."""

    def __init__(self, save):
        self.write, self.pool, self.last = save, ThreadPoolExecutor(1), []

    def save(self, path, **parts):
        """Copy the state of each part; raise the error of the last file, once, if it had one."""
        self.wait()  # never two copies: they take as much memory as the state
        s = {k: copied(p.state_dict() if hasattr(p, "state_dict") else p) for k, p in parts.items()}
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
