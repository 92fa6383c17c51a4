"""What DDP and torch.distributed promise, each checked by a function of its own on two ranks.

    torchrun --standalone --nproc-per-node=2 ddp_checks.py                   # all checks
    torchrun --standalone --nproc-per-node=2 ddp_checks.py sampler no_sync   # two of them

The checks are in checks_data.py, checks_gradients.py, checks_model.py and checks_hangs.py. Every
rank prints one JSON object, {"check": {...}, ...}.
"""

import checks_data
import checks_gradients
import checks_hangs
import checks_model
from checks import run

MODULES = checks_data, checks_gradients, checks_model, checks_hangs

if __name__ == "__main__":
    run([check for module in MODULES for check in module.CHECKS])
