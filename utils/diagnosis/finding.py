"""What the rules find."""

from dataclasses import dataclass

READ_ON = "read on with book/12_gpus.ipynb"


@dataclass(frozen=True)
class Finding:
    """One thing that keeps torch from using a GPU.

    Attributes
    ----------
    cause : str
        A short name for it.
    problem, remedy : str
        What it is, and what can be done about it.
    step : str
        The first thing to do: a command wherever one exists.
    """

    cause: str
    problem: str
    remedy: str
    step: str
