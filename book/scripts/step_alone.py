"""A step of a GPT with the remedies of fitting.py that are named, in a process of its own.

    python step_alone.py "12x768, 16 bits, loss in slices"     layers x width, and remedies

There are three more: "no early stop" runs checkpointed blocks again to their end, "24 GB" is a
limit, and "TF32" is for products in float32. Says that it is ready, waits for a line, and prints a
line of JSON.
"""

import json
import signal
import sys

import fitting
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

input("ready\n")
signal.alarm(50)  # seconds; ends the process
size, *fitting.REMEDIES = sys.argv[1].split(", ")
if size == "12x768":  # GPT-2 small: its heads, and more steps, as they wait for the host
    fitting.HEAD, fitting.WARM, fitting.TIMED = 64, 10, 30
torch.set_float32_matmul_precision("high" if "TF32" in fitting.REMEDIES else "highest")
limit = 24.0 if "24 GB" in fitting.REMEDIES else 0.0
with set_checkpoint_early_stop("no early stop" not in fitting.REMEDIES):
    print(json.dumps(fitting.tried(size, limit, len(fitting.REMEDIES))))
