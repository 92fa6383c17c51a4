"""What the ranks of one run write: their files, the lines in them, and the results among these."""

import json
from pathlib import Path

LAUNCHER = "launcher.json"  # where the launcher leaves the exit codes of failed ranks


class Logs:
    """What the ranks of one run write: torchrun gives each a folder with three files."""

    def __init__(self, folder: Path, ranks: int):
        self.folder, self.ranks = folder, ranks

    def path(self, rank: int, name: str) -> Path:
        """A file of one rank; one that does not exist, if the rank has not been started."""
        found = list(self.folder.glob(f"*/attempt_0/{rank}/{name}"))
        return found[0] if found else self.folder / "none"

    def launcher(self) -> str:
        """What torchrun itself has said."""
        return (self.folder / "launcher.log").read_text(encoding="utf-8", errors="replace")

    def read(self, rank: int, name: str) -> str:
        """The text of a file of one rank, empty if there is none."""
        path = self.path(rank, name)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def result(self, rank: int) -> dict | None:
        """The last result that a rank has printed, None if there is none."""
        for line in reversed(lines_of(self.read(rank, "stdout.log"))):
            if is_result(line):
                return json.loads(line)
        return None


def is_result(line: str) -> bool:
    """Whether a line is a JSON object."""
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def lines_of(text: str) -> list[str]:
    """Split ``text`` at line feeds only: a JSON string may hold what splitlines takes for one."""
    return text.removesuffix("\n").split("\n") if text else []
