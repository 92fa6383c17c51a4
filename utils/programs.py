"""A script, with what it uses of other scripts, as one text that does not say where things stand.

A function or constant may move from one script to another and the text stays as it is. It holds,
each with a number:

1. the acts, in the order in which they run, those of imported scripts where they are imported:
   every statement but a plain definition. A plain definition is a function, a class, or a variable
   with a literal value that has no decorator, calls nothing and is bound once: it means the same
   wherever it stands;
2. each definition, where it is first used; then what the script itself defines and does not use,
   for a page may. What another script defines counts only if it is used.

Under each stand the names that it uses: where they come from, or the number they lead to. So the
text says which of two functions of one name is called, without the name of a file.

Where code looks names up while it runs (``globals()``, ``vars(…)``, a module passed around), all of
the module that it can reach counts, in its order; where it executes or imports what it computes,
all scripts do. What ``if __name__ == "__main__"`` guards counts in the script that is started only.
"""

import re
from collections import Counter
from pathlib import Path

from utils.sources import Piece, Scope, scope_of

GUARD = re.compile(r"if __name__ == ([\"'])__main__\1 :(?![^\0]*^el(se|if)\b)", re.MULTILINE)
# What a module may use of its own without naming it; __file__ is another one in another file.
LOOK_UP = {"globals", "locals", "vars"}
GLOBAL = re.compile(r"(^\s*|; )global ", re.MULTILINE)
# What may reach any module. `modules` is that of sys; that of a network is called.
EXECUTE = {"eval", "exec", "__import__"}
IMPORTERS = {"builtins", "importlib", "pkgutil", "runpy"}
REACH = re.compile(
    r"\. ?modules\b(?! ?\()|\b(__globals__|f_globals|f_locals|getmodule|metaclass"
    r"|__subclasses__|__init_subclass__|__set_name__)\b"
)


def _together(pieces: tuple[Piece, ...]) -> Piece:
    """A module as one act, in its order: for code that may use any of it."""
    parts = ("names", "alone", "dotted", "stored", "strings", "binds")
    return Piece(
        text="\n".join(p.text or f"import {' '.join(sorted(p.binds))}" for p in pieces),
        is_variable=False,
        imports=tuple(sorted({pair for p in pieces for pair in p.imports})),
        is_settled=False,
        **{part: frozenset().union(*(getattr(p, part) for p in pieces)) for part in parts},
    )


def _reaches_all(scope: Scope) -> bool:
    """Whether a module may run code of others that nobody can tell from reading it."""
    origins = [origin for piece in scope.pieces for _, origin in piece.imports]
    imported = any(o.split(".")[0] in IMPORTERS or o == "sys.modules" for o in origins)
    return imported or any(p.names & EXECUTE or REACH.search(p.text) for p in scope.pieces)


def _looks_up(scope: Scope) -> bool:
    """Whether a module may use its own names otherwise than by naming them."""

    def special(piece: Piece) -> bool:
        dunder = any(name.startswith("__") and name != "__doc__" for name in piece.names)
        return dunder and not GUARD.match(piece.text)

    return any(p.names & LOOK_UP or GLOBAL.search(p.text) or special(p) for p in scope.pieces)


def _definitions(scope: Scope) -> dict[str, Piece]:
    times = Counter(name for piece in scope.pieces for name in piece.binds)
    plain = [p for p in scope.pieces if p.is_settled and all(times[n] == 1 for n in p.binds)]
    return {name: piece for piece in plain for name in piece.binds}


class Program:
    """The script ``name`` of ``folder``, with what it uses of the other scripts there.

    Parameters
    ----------
    folder : Path
        Where the scripts are; each can import the others.
    name : str
        Of the script that is started, without ``.py``.

    Attributes
    ----------
    text : str
        See the top of this file.
    helpers : set of str
        What it imports from the package utils, such as ``utils.models.MnistCNN``.
    strings : set of str
        Its string constants, of which some may name another script.

    Raises
    ------
    ValueError
        If a script imports from a folder that lies among the scripts.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.helpers: set[str] = set()
        self.strings: set[str] = set()
        self._folder, self._started = folder, name
        self._scopes: dict[str, Scope] = {}
        self._parts: list[tuple[str, Piece]] = []  # the module of each, and what it holds of it
        self._enter(name)
        texts: list[str] = []
        for wanted in ["", *sorted(_definitions(self._scopes[name]))]:
            self._leads(name, wanted)
            while len(texts) < len(self._parts):  # each may lead to others
                texts.append(self._part(*self._parts[len(texts)]))
        self.text = "\n\n".join(texts)

    def _enter(self, name: str) -> bool:
        """Follow the import of a script, if ``name`` is one: its acts run."""
        path = self._folder / f"{name}.py"
        if name.isidentifier() and path.with_suffix("").is_dir():
            raise ValueError(f"{name} is a folder: scripts that share code lie side by side")
        if name in self._scopes or not path.is_file():
            return name in self._scopes
        scope = scope_of(path.read_text(encoding="utf-8"))
        pieces = [p for p in scope.pieces if name == self._started or not GUARD.match(p.text)]
        if _looks_up(scope) or _reaches_all(scope):
            pieces = [p for p in pieces if not p.text] + [_together(scope.pieces)]
        scope = self._scopes[name] = Scope(tuple(pieces), {}, {})
        defined = _definitions(scope).values()
        for piece in pieces:
            ours = [
                self._enter(o.split(".")[0]) for bound, o in piece.imports if bound in piece.binds
            ]
            # That a library is imported first is no act; that it is imported after one may be.
            if piece not in defined and (piece.text or (self._parts and not all(ours))):
                self._parts.append((name, piece))
        used = frozenset().union(*(p.names for p in pieces))
        unused = frozenset().union(*(p.binds for p in pieces if not p.text)) - used - {"*"}
        if unused:  # imported for what the import does, or for a page
            self._parts.append((name, _naming(unused)))
        if _reaches_all(scope):
            for other in sorted(path.stem for path in self._folder.glob("*.py")):
                self._enter(other)
                self._whole(other)
        return True

    def _part(self, where: str, piece: Piece) -> str:
        """The text of one part, and where the names in it lead."""
        self.strings |= piece.strings
        lines = [piece.text] if piece.text else []
        for name in sorted({*piece.names, "*", *(bound for bound, _ in piece.imports)}):
            chains = sorted(d for d in piece.dotted if d.startswith(f"{name}."))
            if name in piece.alone or not chains or piece.stored & {*chains}:
                chains.append(name)  # the thing itself, not only something of it
            leads = []
            for chain in chains:
                rest = chain[len(name) + 1 :]
                local = [origin for bound, origin in piece.imports if bound == name]
                leads += [lead for origin in local for lead in self._follow(origin, rest)]
                leads += self._leads(where, name, rest)
            if leads:
                lines.append(f"{name} = {' '.join(dict.fromkeys(leads))}")
        return "\n".join(lines)

    def _leads(self, where: str, name: str, rest: str = "", seen: tuple = ()) -> list[str]:
        """Where ``name`` leads in the module ``where``; ``rest``: the attributes behind it."""
        if (where, name) in seen:  # two scripts import it from each other
            return []
        leads = []
        for piece in self._scopes[where].pieces:
            if name in piece.binds and piece.text:
                leads.append(self._number(where, piece))
            for bound, origin in piece.imports:
                if bound == name and name in piece.binds:
                    leads += self._follow(origin, rest, (*seen, (where, name)))
        return leads

    def _follow(self, origin: str, rest: str, seen: tuple = ()) -> list[str]:
        """Where an import leads: to a number, if it is of a script, or to its origin."""
        top, *names = filter(None, f"{origin}.{rest}".split("."))
        if top == "utils":
            self.helpers.add(".".join([top, *names]))
            return [".".join(names[1:]) or "*"]
        if origin.startswith(".") or not self._enter(top):
            return [origin]
        if names and any(names[0] in piece.binds for piece in self._scopes[top].pieces):
            return self._leads(top, names[0], ".".join(names[1:]), seen)
        return [self._whole(top)]

    def _whole(self, where: str) -> str:
        return self._number(where, _together(self._scopes[where].pieces))

    def _number(self, where: str, piece: Piece) -> str:
        if (where, piece) not in self._parts:
            self._parts.append((where, piece))
        return f"#{self._parts.index((where, piece))}"


def _naming(names: frozenset[str]) -> Piece:
    """A part without a text, for names that no statement uses."""
    none: frozenset[str] = frozenset()
    return Piece("", False, names, names, none, none, (), none, none, False)
