"""The scripts of the book: found by name, and shown in the page."""

import ast
from pathlib import Path

from utils.record import SCRIPTS


def find(script: str | Path) -> Path:
    """The file of a script: one of ``book/scripts``, else a path; FileNotFoundError if neither."""
    path = SCRIPTS / script if (SCRIPTS / script).is_file() else Path(script)
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in SCRIPTS.glob("*.py")))
        raise FileNotFoundError(f"no script {script}; book/scripts has {there}")
    return path.resolve()


class Source:
    """A script of ``book/scripts`` as it is, shown as code in the page.

    Parameters
    ----------
    script : str
        Name of the file.
    names : str
        Show only these functions and classes, in this order.

    Attributes
    ----------
    name, text : str
        The file, from the project's root, and what is shown of it.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such script, or nothing of that name in it.
    """

    def __init__(self, script: str, *names: str):
        self.name = f"book/scripts/{script}"
        text = find(script).read_text(encoding="utf-8")
        lines, parts = text.splitlines(), {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                parts[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
        unknown = [name for name in names if name not in parts]
        if unknown:
            raise ValueError(f"{script} defines {', '.join(parts)}, but not {', '.join(unknown)}")
        self.text = "\n\n\n".join(parts[name] for name in names) if names else text.strip()

    def _repr_markdown_(self) -> str:
        return f"`{self.name}`\n\n```python\n{self.text}\n```"

    def __repr__(self) -> str:
        return f"# {self.name}\n{self.text}"
