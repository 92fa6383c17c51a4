"""What stands for a measurement while a chapter is drafted on a machine that cannot make it."""

import subprocess
from pathlib import Path
from typing import Any

NOTICE = "NOT RECORDED YET"


class Placeholder:
    """A result that nobody has measured: whatever is done with it gives a placeholder again.

    It counts as true and compares as true, so that the assertions of a draft pass; a loop over it
    runs zero times; as a number it is ``nan``, and in a text ``—``.
    """

    def __getattr__(self, name: str) -> "Placeholder":
        if name.startswith("_"):  # what NumPy, IPython and copy look for, it does not have
            raise AttributeError(name)
        return self

    def _same(self, *anything: Any, **more: Any) -> "Placeholder":
        return self

    def _true(self, *anything: Any) -> bool:
        return True

    __call__ = __getitem__ = _same
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _same
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _same
    __neg__ = __pos__ = __abs__ = __round__ = __or__ = __ror__ = __and__ = __rand__ = _same
    __deepcopy__ = __copy__ = _same
    __bool__ = __contains__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _true
    __hash__ = object.__hash__

    def __iter__(self):
        return iter(())

    def __len__(self) -> int:
        return 0

    def __float__(self) -> float:
        return float("nan")

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __str__(self) -> str:
        return "—"

    def __format__(self, spec: str) -> str:
        return "—"

    def __repr__(self) -> str:
        return f"<{NOTICE}>"


def never_recorded(path: Path) -> bool:
    """Return whether git is sure that no file was ever at ``path``: a draft, not a loss.

    A record that git knows, or of which no git can tell, was removed or not delivered.
    """
    if path.exists():
        return False
    command = ["git", "log", "-1", "--format=%h", "--all", "--", path.name]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stdout.strip()
