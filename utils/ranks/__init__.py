"""Real ranks from a notebook cell: start a script under torchrun, watch it, leave nothing behind.

=============== ====================================================================
start           torchrun, as a function
launcher        torchrun, in a process of its own
watching        wait for it: show what rank 0 prints, notice ranks that do nothing
processes       find the processes of a run; end them
logs            what the ranks have written, and their results in it
failures        what became of ranks that failed or hung, as an error to raise
scripts         the scripts that ranks run, found and shown in the page
=============== ====================================================================
"""

from utils.ranks.failures import RankError, RankTimeout
from utils.ranks.scripts import Source
from utils.ranks.start import torchrun

__all__ = ["RankError", "RankTimeout", "Source", "torchrun"]
