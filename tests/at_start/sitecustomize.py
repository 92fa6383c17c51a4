"""Python runs this when it starts: torchrun, started by a notebook, then forks its ranks.

kernels.py puts this folder on the path of what notebooks start.
"""

import sys
from pathlib import Path

if "utils.ranks.launcher" in sys.orig_argv[:3]:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    sys.path.append(str(Path(__file__).parent.parent))
    from forked import start_rank

    subprocess_handler.Popen = start_rank
