"""Real ranks from a notebook cell: start a script under torchrun, watch it, leave nothing behind::

    results = torchrun("train_ddp.py", "--epochs", 1, ranks=2)

A *rank* is one process of the group; it usually drives one GPU. The script is an ordinary training
script of ``book/scripts``: it also runs under ``torchrun`` in a terminal. The one thing asked of it
is that every rank prints its result, a JSON object, as a line of its own; the last one counts.

With fewer GPUs than ranks, the GPUs are hidden from the ranks, which then meet through gloo on the
CPU. The first line of the cell says which it was. Linux and macOS.

``start`` has what pages call, ``launcher`` is torchrun in a process of its own, ``processes`` finds
and ends what belongs to a run, ``logs`` reads what the ranks have said.
"""

from utils.ranks.logs import RankError, RankTimeout
from utils.ranks.start import Source, torchrun

__all__ = ["RankError", "RankTimeout", "Source", "torchrun"]
