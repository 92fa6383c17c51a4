"""progress.py: the step, and the global generators of random numbers."""

import importlib.util
import random

import torch


class Progress:
    """The step, and the generators of torch, random and np.random: one more part of a checkpoint.

    Not np.random.default_rng() or random.Random(): save those yourself. Each rank has its own.
    """

    def __init__(self, *own):
        """`own` are `torch.Generator`s besides the global ones, such as that of a DataLoader."""
        self.step, self.generators = 0, (torch.default_generator, *own)

    def state_dict(self):
        kept = dict(step=self.step, python=random.getstate(), cuda=torch.cuda.get_rng_state_all())
        if importlib.util.find_spec("numpy"):  # torch works without it
            name, keys, *rest = importlib.import_module("numpy").random.get_state()
            kept["numpy"] = (name, keys.tolist(), *rest)  # weights_only refuses arrays
        return kept | {f"generator {i}": g.get_state() for i, g in enumerate(self.generators)}

    def load_state_dict(self, state):
        if "numpy" in state and importlib.util.find_spec("numpy"):
            importlib.import_module("numpy").random.set_state(state["numpy"])
        torch.cuda.set_rng_state_all(s.cpu() for s in state["cuda"][: torch.cuda.device_count()])
        random.setstate(state["python"])
        self.step = state["step"]
        for i, generator in enumerate(self.generators):
            generator.set_state(state[f"generator {i}"].cpu())  # map_location may move it


if __name__ == "__main__":
    progress, device = Progress(), torch.accelerator.current_accelerator(True)
    state, first = progress.state_dict(), torch.rand(3, device=device)
    progress.load_state_dict(state)
    print(f"saved {', '.join(state)}; off by", (torch.rand(3, device=device) - first).tolist())
