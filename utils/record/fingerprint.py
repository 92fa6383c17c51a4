"""The hash that ties a record to the code that made it.

A record is only worth replaying while the code beside it is the code that was measured. What counts
is found name by name: the experiment; every function, class and ALL_CAPS constant of the notebook
that it uses, with what changes such a constant in place; what these use of the helpers that decide
a measurement (:data:`MEASURING`); and the scripts of ``book/scripts`` whose names they hold, with
the codes to keep that these import. Of a
script or a helper's file count the statements that run whenever it is loaded, and the definitions
that are reached, wherever they stand; of a script's flags, those that something reached mentions.
Where a library's name comes from counts, too.

Comments, docstrings and layout do not count. The text of a statement is put together from its
tokens as they stand, because ``ast.unparse``, ``ast.dump`` and bytecode differ from one Python to
the next; f-strings, whose tokens differ, are kept whole. Quotes and commas stand as they are
written: format first, then record.
"""

import ast
import functools
import hashlib
import io
import linecache
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

UTILS = Path(__file__).resolve().parent.parent
SCRIPTS = UTILS.parent / "book" / "scripts"
KEEP = UTILS.parent / "book" / "keep"
# The modules of utils whose code decides what is measured. The others start processes, keep files,
# describe the machine or draw.
MEASURING = ("timing", "gpt2_step", "models", "data", "memory")
NOTEBOOK = (
    "the notebook"  # where its cells stand; helpers and scripts have the names of their files
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Methods of lists, sets and dicts that change them.
CHANGING = {"append", "extend", "insert", "remove", "sort", "reverse", "add", "discard"}
CHANGING |= {"update", "setdefault", "pop", "popitem", "clear"}

Place = tuple[int, int]  # line and column


class Source(NamedTuple):
    """What a cell, a helper's file or a script holds at its top level."""

    definitions: dict[str, list["Statement"]]  # of functions, classes and variables
    changes: dict[str, list["Statement"]]  # what changes a constant in place, by its name
    acts: list["Statement"]  # what else runs when it is loaded
    main: list["Statement"]  # what runs only when it is started: if __name__ == "__main__"
    flags: dict[str, "Statement"]  # what adds a flag to a command line, by the name of its value
    imports: dict[str, str]  # {"F": "torch.nn.functional"}


# --- the text of a statement --------------------------------------------------------------------


def _range(lines: list[str], node: ast.AST) -> tuple[Place, Place]:
    """Where ``node`` begins and ends, its decorators included, in characters."""

    def place(line: int, column: int) -> Place:  # ast counts bytes
        return line, len(lines[line - 1].encode()[:column].decode())

    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    decorators = getattr(node, "decorator_list", [])
    return place(*((decorators[0].lineno, 0) if decorators else start)), place(*end)


def _cut(lines: list[str], start: Place, end: Place) -> str:
    held = lines[start[0] - 1 : end[0]]
    held[-1] = held[-1][: end[1]]  # before the other end, which may be on the same line
    held[0] = held[0][start[1] :]
    return "\n".join(held)


def _tokens(source: str) -> Iterator[tuple[int, str, Place]]:
    """Type, text and start of each token; f-strings whole, as Python 3.10 and 3.11 give them."""
    lines, depth, start = source.split("\n"), 0, (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("FSTRING_START", "TSTRING_START"):
            depth, start = depth + 1, start if depth else token.start
        elif kind in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if not depth:
                yield tokenize.STRING, _cut(lines, start, token.end), start
        elif not depth:
            yield token.type, token.string, token.start


def _text(source: str, node: ast.stmt) -> str:
    """``node`` as it stands in ``source``, less what does not count, or counts by itself."""
    alone = _cut(source.split("\n"), *_range(source.split("\n"), node)) + "\n"
    tree, lines = ast.parse(alone), alone.split("\n")
    apart = [part for part in ast.walk(tree) if _is_import(part) or _flag(part)]
    apart = [] if _flag(node) else apart
    skipped = [_range(lines, part) for part in (*_docstrings(tree), *apart)]
    silent = (tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER)
    result: list[list[str]] = [[]]  # logical lines, each a list of tokens
    depth = 0
    for kind, text, start in _tokens(alone):
        if kind == tokenize.NEWLINE:
            result += [[]] if result[-1] else []
        elif kind in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if kind == tokenize.INDENT else -1
        elif not (kind in silent or any(a <= start < b for a, b in skipped)):
            result[-1] += [text] if result[-1] else ["    " * depth + text]
    return "\n".join(" ".join(line) for line in result if line)


def _docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _flag(node: ast.AST) -> str | None:
    """What ``parser.add_argument("--batch-size", …)`` calls its value: ``"batch_size"``.

    So does ``flag``, if it is short for ``parser.add_argument``.
    """
    call = node.value if isinstance(node, ast.Expr) else None
    called = getattr(call, "func", None)
    if getattr(called, "attr", getattr(called, "id", "")) not in ("add_argument", "flag"):
        return None
    named = [k.value for k in call.keywords if k.arg == "dest"] + call.args[:1]
    first, name = (getattr(n[0], "value", "") if n else "" for n in (call.args, named))
    return str(name).lstrip("-").replace("-", "_") if str(first).startswith("--") else None


# --- what a source defines, and what each statement leads to --------------------------------------


def _imports(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The names that imports among ``nodes`` bind, and where they come from."""
    found = {}
    for node in filter(_is_import, nodes):
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                found[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
            else:
                top = alias.name.split(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
    return found


def _dotted(node: ast.AST) -> str | None:
    """``"a.b.c"`` of such an expression, None of another."""
    if isinstance(node, ast.Name):
        return node.id
    front = _dotted(node.value) if isinstance(node, ast.Attribute) else None
    return front and f"{front}.{node.attr}"


class Statement:
    """A statement: its text, and what it leads to; worked out once asked for, as few ever are."""

    def __init__(self, source: str, node: ast.stmt) -> None:
        self.source, self.node = source, node
        self.is_variable = isinstance(node, ast.Assign | ast.AnnAssign)

    @functools.cached_property
    def text(self) -> str:
        return _text(self.source, self.node)

    @functools.cached_property
    def parts(self) -> list[ast.AST]:
        """What it is made of, less its documentation and flags."""
        node, documentation = self.node, {id(doc.value) for doc in _docstrings(self.node)}
        flags = {id(p) for f in ast.walk(node) if f is not node and _flag(f) for p in ast.walk(f)}
        return [part for part in ast.walk(node) if id(part) not in documentation | flags]

    @functools.cached_property
    def names(self) -> set[str]:
        """The names that it uses, each with its attributes: ``"data.root"``."""
        fronts = {id(part.value) for part in self.parts if isinstance(part, ast.Attribute)}
        return {*filter(None, (_dotted(part) for part in self.parts if id(part) not in fronts))}

    @functools.cached_property
    def mentions(self) -> set[str]:
        """Every identifier and string in it."""
        keys = ("id", "attr", "arg", "value")
        words = [getattr(part, key, None) for part in self.parts for key in keys]
        return {word for word in words if isinstance(word, str)}

    @functools.cached_property
    def imports(self) -> dict[str, str]:
        """What is imported within it: the name, and where it comes from."""
        return _imports(self.parts)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, DEFINITIONS):
        return [node.name]
    targets = getattr(node, "targets", [node.target] if isinstance(node, ast.AnnAssign) else [])
    names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def _changed(node: ast.stmt) -> set[str]:
    """The constants that a statement may change in place: ``SIZES.append(3)``, ``SIZES[0] = 1``."""
    if isinstance(node, DEFINITIONS):
        return set()
    found = set()
    for part in ast.walk(node):
        is_call = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
        root = part.func if is_call and part.func.attr in CHANGING else part
        if root is part and isinstance(getattr(part, "ctx", ast.Load()), ast.Load):
            continue
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        found |= {root.id} if isinstance(root, ast.Name) else set()
    return {name for name in found if name.isupper()} - {*_defined(node)}


def _is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


@functools.lru_cache(maxsize=2048)
def source_from(text: str) -> Source:
    """Return what ``text``, a cell, a helper's file or a script, holds; nothing if no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a magic, or a reader's half-written cell
        tree = ast.Module([], [])
    found = Source({}, {}, [], [], {}, {})
    for node in tree.body[ast.get_docstring(tree, clean=False) is not None :]:
        statement = Statement(text, node)
        for name in _defined(node):
            found.definitions.setdefault(name, []).append(statement)
        for name in _changed(node):
            found.changes.setdefault(name, []).append(statement)
        if _is_import(node) or (hasattr(node, "body") and not isinstance(node, DEFINITIONS)):
            found.imports.update(statement.imports)
        if not (_defined(node) or _is_import(node) or _flag(node)):
            (found.main if _is_guard(node) else found.acts).append(statement)
    may_have_flags = "add_argument(" in text or "flag(" in text  # to walk a tree takes its time
    flags = [node for node in ast.walk(tree) if _flag(node)] if may_have_flags else []
    found.flags.update({_flag(node): Statement(text, node) for node in flags})
    return found


def _imported(module: str) -> Path | None:
    """The script, or code to keep, that a script means by ``import module``."""
    found = (folder / f"{module}.py" for folder in (SCRIPTS, KEEP))
    return next((path for path in found if path.is_file()), None)


class _Walk:
    """Collects texts, and where imported names come from, beginning with one definition."""

    def __init__(self, cells: Iterable[str]) -> None:
        self.texts: set[str] = set()
        self.origins: set[str] = set()
        self.mentions: set[str] = set()
        self.seen: set[tuple] = set()
        self.sources = {NOTEBOOK: Source({}, {}, [], [], {}, {})}
        for cell in map(source_from, cells):  # of definitions in two cells the later counts
            definitions = self.sources[NOTEBOOK].definitions
            definitions.update(cell.definitions)
            for name, changes in cell.changes.items():
                definitions[name] = [*definitions.get(name, ()), *changes]
            self.sources[NOTEBOOK].imports.update(cell.imports)

    def source(self, path: Path) -> str:
        """Load a file, once, with what runs at that; return its key in :attr:`sources`."""
        where = str(path)
        if where not in self.sources:
            self.sources[where] = source_from(path.read_text(encoding="utf-8"))
            for origin in self.sources[where].imports.values():
                other = _imported(origin.split(".")[0])
                if other and path.parent in (SCRIPTS, KEEP):
                    self.source(other)
            self.statements(where, self.sources[where].acts)
        return where

    def start(self, name: str) -> None:
        """What a script runs when it is started, if ``name`` is one's."""
        path = SCRIPTS / name
        if path.suffix == ".py" and path.parent == SCRIPTS and path.is_file():
            where = self.source(path)
            self.statements(where, self.sources[where].main)

    def statements(self, where: str, group: Sequence[Statement]) -> None:
        """Statements that belong together, in their order, and what they lead to."""
        text = "\n".join(statement.text for statement in group)
        if not text or (where, text) in self.seen:
            return
        self.seen.add((where, text))
        self.texts.add(text)
        for statement in group:
            self.mentions |= statement.mentions
            for name in sorted(statement.names):
                self.name(where, name, statement.imports)
            for mentioned in sorted(statement.mentions):
                self.start(mentioned)

    def name(self, where: str, dotted: str, local: dict[str, str]) -> None:
        """What a name that a statement uses, such as ``"data.root"``, leads to."""
        name, _, rest = dotted.partition(".")
        self.definition(where, name)
        origin = (self.sources[where].imports | local).get(name)
        if origin:
            self.imported(where, name, origin, rest)

    def definition(self, where: str, name: str) -> None:
        found = self.sources[where].definitions.get(name, [])
        if where == NOTEBOOK and not name.isupper():  # of its variables, constants only
            found = [statement for statement in found if not statement.is_variable]
        self.statements(where, found)

    def imported(self, where: str, name: str, origin: str, rest: str) -> None:
        """What an import leads to: a definition of ours, our whole file, or a library."""
        module, *names = filter(None, f"{origin}.{rest}".split("."))
        path = _imported(module)
        if module == "utils":
            module, *names = names or [""]
            path = UTILS / f"{module}.py"
            if module not in MEASURING:
                return
        elif not path:
            self.origins.add(f"{name} = {origin}")
            return
        there = self.source(path)
        for wanted in [".".join(names)] if names else list(self.sources[there].definitions):
            self.name(there, wanted, {})

    def flags(self) -> None:
        """The flags of all scripts, as far as something that counts mentions their values."""
        found = -1
        while found < len(self.texts):
            found = len(self.texts)
            for where, source in list(self.sources.items()):
                mentioned = [f for name, f in source.flags.items() if name in self.mentions]
                self.statements(where, mentioned)


def covered(name: str, cells: Iterable[str]) -> list[str]:
    """Return the statements that ``name`` stands for: its own, then all that it uses.

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
    walk = _Walk(cells)
    if name not in walk.sources[NOTEBOOK].definitions:
        raise KeyError(f"no cell defines {name!r}")
    walk.definition(NOTEBOOK, name)
    walk.flags()
    own = walk.sources[NOTEBOOK].definitions[name][-1].text
    return [own, *sorted(walk.texts - {own}), *sorted(walk.origins)]


def fingerprint(name: str, cells: Iterable[str]) -> str:
    """Return ``"sha256:…"`` of what is :func:`covered` (same arguments, same errors)."""
    return "sha256:" + hashlib.sha256("\n\n".join(covered(name, cells)).encode()).hexdigest()


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
