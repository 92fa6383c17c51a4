"""Python runs this when it starts, in the tests and in what they start: it saves their time.

kernels.py puts this folder on the path of what notebooks start, `make test` on that of the tests.
"""

import os
import sys
from pathlib import Path

# jsonschema would build 38 parsers, a second of a processor, for addresses that nobody checks.
sys.modules["rfc3987_syntax"] = None

# In notebooks, whoever is torchrun forks its ranks. (Tests of torchrun choose for themselves.)
STARTERS = {"utils.ranks.launcher", "torch.distributed.run", "two_agents.py"}
if "BOOK_FORK_RANKS" in os.environ and STARTERS & {Path(a).name for a in sys.orig_argv[:3]}:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    sys.path.append(str(Path(__file__).parent.parent))
    from forked import start_rank

    subprocess_handler.Popen = start_rank
