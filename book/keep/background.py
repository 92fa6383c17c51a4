"""background.py: training stops for a copy to host memory, and a thread writes the file."""

from concurrent.futures import ThreadPoolExecutor

import torch


def copied(value):
    """`value` as it is now, in host memory, however deep in it the tensors lie."""
    if isinstance(value, torch.Tensor):  # from this GPU to pinned memory, nobody waits
        here = value.is_cuda and value.get_device() == torch.cuda.current_device()
        return value.detach().to("cpu", non_blocking=here, copy=True)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return type(value)(map(copied, value)) if isinstance(value, list | tuple) else value


class Background:
    """`Background(save).save(path, model=model, ...)` writes in a thread; `wait()` at the end."""

    def __init__(self, save):
        self.write, self.pool, self.pending = save, ThreadPoolExecutor(1), None

    def save(self, path, **parts):
        """Copy the state of each part; raise the error of the last file, once, if it had one."""
        self.wait()  # never two copies: they take as much memory as the state
        states = {k: copied(p if isinstance(p, dict) else p.state_dict()) for k, p in parts.items()}
        if torch.cuda.is_available():  # the thread waits for the copies, not the training
            self.pool.submit(torch.cuda.current_stream().record_event().synchronize)
        self.pending = self.pool.submit(self.write, path, **states)

    def wait(self):
        """Wait for the last file; raise what its thread raised, once."""
        pending, self.pending = self.pending, None
        return pending and pending.result()


if __name__ == "__main__":
    writer = Background(lambda path, **states: print(f"a thread writes {path}:", *states))
    writer.save("run.pt", model=torch.nn.PReLU(device=torch.accelerator.current_accelerator(True)))
    writer.wait()
