"""progress.py: the step, and every generator of random numbers."""

import random

import numpy as np
import torch


class Progress:
    """The step counter and all random number generators: one more part of a checkpoint."""

    step = 0

    def state_dict(self):
        name, keys, *rest = np.random.get_state()
        return {
            "step": self.step,
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all(),  # none without a GPU
            "python": random.getstate(),
            "numpy": (name, keys.tolist(), *rest),  # weights_only refuses arrays
        }

    def load_state_dict(self, state):
        self.step = state["step"]
        torch.set_rng_state(state["torch"])
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])


progress, device = Progress(), "cuda" if torch.cuda.is_available() else "cpu"
state, first = progress.state_dict(), torch.rand(3, device=device)
progress.load_state_dict(state)
print(f"saved {', '.join(state)}; off by", (torch.rand(3, device=device) - first).tolist())
