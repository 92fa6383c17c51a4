"""The hash that ties a record to the code that made it.

A record is only worth replaying while the code beside it is the code that was measured. The
fingerprint covers the experiment and, through it, every function, class and ALL_CAPS constant of
the notebook that it uses, and every script of ``book/scripts`` that they name. It is computed from
source text, not from ``ast.dump`` or bytecode, which differ from one Python to the next.
"""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "book" / "scripts"


def _defined_names(node: ast.stmt) -> list[str]:
    """Names that a top-level statement defines and that an experiment may depend on."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return [n.id for n in names if isinstance(n.ctx, ast.Store) and n.id.isupper()]


def _text(lines: list[str], node: ast.stmt) -> str:
    """Source of ``node`` with its decorators, without comment-only and blank lines."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    return _code(lines[first - 1 : node.end_lineno])


def _code(lines: list[str]) -> str:
    """``lines`` without comment-only and blank ones."""
    kept = (line.rstrip() for line in lines)
    return "\n".join(line for line in kept if line and not line.lstrip().startswith("#"))


def _scripts(node: ast.AST) -> set[str]:
    """The scripts of the book that ``node`` names, as in ``torchrun("all_reduce.py", ranks=2)``.

    Those that they import are among them.
    """
    names = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
    todo = {s for s in names if isinstance(s, str) and s.endswith(".py") and "/" not in s}
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found and (SCRIPTS / name).is_file():
            found.add(name)
            for part in ast.walk(ast.parse((SCRIPTS / name).read_text(encoding="utf-8"))):
                if isinstance(part, ast.ImportFrom):
                    todo.add(f"{part.module}.py")
                elif isinstance(part, ast.Import):
                    todo |= {f"{alias.name}.py" for alias in part.names}
    return found


def source_of(name: str, cells: Iterable[str]) -> str:
    """Return the code that ``name`` stands for: its own, all it uses from ``cells``, scripts.

    Parameters
    ----------
    name : str
        A function, class or constant defined at the top level of a cell.
    cells : iterable of str
        Cell sources in execution order; of two definitions the later one counts.

    Raises
    ------
    KeyError
        If no cell defines ``name``.
    """
    definitions: dict[str, tuple[str, set[str], set[str]]] = {}
    for cell in cells:
        try:
            tree = ast.parse(cell)
        except SyntaxError:  # a magic, or a reader's half-written cell: defines nothing
            continue
        lines = cell.splitlines()
        for node in tree.body:
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            for defined in _defined_names(node):
                definitions[defined] = (_text(lines, node), used, _scripts(node))
    if name not in definitions:
        raise KeyError(f"no cell defines {name!r}")
    found, todo = {name}, [name]
    while todo:
        for used in definitions[todo.pop()][1] & definitions.keys() - found:
            found.add(used)
            todo.append(used)
    scripts = sorted(set().union(*(definitions[n][2] for n in found)))
    files = [(SCRIPTS / script).read_text(encoding="utf-8") for script in scripts]
    texts = [definitions[n][0] for n in [name, *sorted(found - {name})]]
    return "\n\n".join([*texts, *(_code(text.splitlines()) for text in files)])


def fingerprint(name: str, cells: Iterable[str]) -> str:
    """Return ``"sha256:…"`` of :func:`source_of` (same arguments, same errors)."""
    return "sha256:" + hashlib.sha256(source_of(name, cells).encode()).hexdigest()
