"""The hash that ties a record to the code that made it.

A record is only worth replaying while the code beside it is the code that was measured. What counts
is found name by name: the experiment; every function, class and ALL_CAPS constant of the notebook
that it uses; what these use of the helpers that decide a measurement (:data:`MEASURING`); every
script of ``book/scripts`` that they name, with what it uses of the others
(:mod:`utils.programs`); and where each imported name comes from. Comments, docstrings and layout do
not count, nor do the names of the book's own modules: a helper, or a function of a script, can be
explained better, or moved, and no record is stale.
"""

import hashlib
import linecache
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from utils.programs import Program
from utils.sources import Piece, Scope, scope_of

UTILS = Path(__file__).resolve().parent
SCRIPTS = UTILS.parent / "book" / "scripts"
# The modules of utils whose code decides what is measured. The others start processes, keep files,
# describe the machine or draw.
MEASURING = ("timing", "stopwatch", "models", "data", "memory", "weighing")
CELLS = "the notebook"  # the scope of the cells; the others have the names of their files


def _notebook(cells: Iterable[str]) -> Scope:
    """All cells as one scope; of definitions in two cells the later counts."""
    definitions, imports = {}, {}
    for scope in map(scope_of, cells):
        definitions |= scope.definitions
        imports |= scope.imports
    return Scope((), definitions, imports)


def _ours(origin: str) -> bool:
    return origin.split(".")[0] == "utils"


class _Walk:
    """Collects texts, and where imported names come from, beginning with one definition."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.origins: set[str] = set()
        self.seen: set[tuple] = set()

    def definition(self, where: str, scope: Scope, name: str) -> None:
        if (where, name) in self.seen:
            return
        self.seen.add((where, name))
        for piece in scope.definitions.get(name, ()):
            if where != CELLS or not piece.is_variable or name.isupper():
                self.piece(where, scope, piece)

    def acts(self, where: str, scope: Scope) -> None:
        """What a module does when it is imported, other than defining names."""
        if (where, None) not in self.seen:
            self.seen.add((where, None))
            for piece in scope.acts:
                self.piece(where, scope, piece)

    def script(self, name: str) -> None:
        """What a script runs, if ``name`` is one's, and what it uses of the helpers."""
        path = SCRIPTS / name
        if path.suffix != ".py" or path.parent != SCRIPTS or not path.is_file():
            return
        if (name, None) in self.seen:
            return
        self.seen.add((name, None))
        program = Program(SCRIPTS, path.stem)
        self.texts.add(program.text)
        for origin in sorted(program.helpers):
            self.helper(origin)
        for string in program.strings:
            self.script(string)

    def piece(self, where: str, scope: Scope, piece: Piece) -> None:
        self.texts.add(piece.text)
        for name in piece.names:
            self.definition(where, scope, name)
        self.uses(where, scope, piece)

    def uses(self, where: str, scope: Scope, piece: Piece) -> None:
        """What ``piece`` uses from elsewhere: imported names, and scripts."""
        local = dict(piece.imports)
        for bound, origin in (scope.imports | local).items():
            if bound not in piece.names and bound not in local:
                continue
            if not _ours(origin):
                self.origins.add(f"{bound} = {origin}")
                continue
            chains = [d for d in piece.dotted if d.startswith(f"{bound}.")]
            for chain in chains:
                self.helper(origin + chain[len(bound) :])
            hidden = bound in piece.stored and bound not in local  # a variable of the same name
            if bound in piece.alone and not hidden:
                self.helper(origin)
        for string in piece.strings:
            self.script(string)

    def helper(self, origin: str) -> None:
        """What an origin such as ``utils.data.root``, or a module as a whole, stands for."""
        package, module, name, *_ = (*origin.split("."), "", "")
        if package != "utils" or module not in MEASURING:
            return
        scope = scope_of((UTILS / f"{module}.py").read_text(encoding="utf-8"))
        self.acts(module, scope)
        for wanted in [name] if name else scope.definitions:
            self.definition(module, scope, wanted)
        if name in scope.imports and name not in scope.definitions:
            self.helper(scope.imports[name])


def source_of(name: str, cells: Iterable[str]) -> str:
    """Return the code that ``name`` stands for: its own, then all that it uses.

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
    notebook = _notebook(cells)
    if name not in notebook.definitions:
        raise KeyError(f"no cell defines {name!r}")
    walk = _Walk()
    walk.definition(CELLS, notebook, name)
    own = notebook.definitions[name][-1].text
    return "\n\n".join([own, *sorted(walk.texts - {own}), *sorted(walk.origins)])


def fingerprint(name: str, cells: Iterable[str]) -> str:
    """Return ``"sha256:…"`` of :func:`source_of` (same arguments, same errors)."""
    return "sha256:" + hashlib.sha256(source_of(name, cells).encode()).hexdigest()


def cells_of(function: Callable) -> list[str]:
    """Return where ``function`` was defined: the kernel's cells so far, or its module."""
    module, own = sys.modules[function.__module__], function.__code__.co_filename
    if getattr(module, "__file__", None) == own:  # Triton's interpreter gives a notebook its own
        return [Path(own).read_text(encoding="utf-8")]
    # A kernel keeps the source of every cell for tracebacks, under names in one folder. (Its
    # history would not do: nbval runs cells without storing them there.) The function's own cell
    # comes last, so that its present version counts after edits back and forth.
    cached = {name: entry for name, entry in linecache.cache.items() if len(entry) > 1}
    names = [n for n in cached if Path(n).parent == Path(own).parent and n != own]
    return ["".join(cached[name][2]) for name in [*names, own]]
