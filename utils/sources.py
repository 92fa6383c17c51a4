"""What a source defines, statement by statement, in a text that is the same on every Python.

Comments, docstrings, blank lines and line breaks within brackets are left out, and so are imports,
which are kept apart. Quotes and commas stand as they are written: format first, then record. The
text is put together from tokens as they stand in the source: ``ast.unparse``, ``ast.dump`` and
bytecode differ from one Python to the next, and so do the tokens within f-strings, which are kept
whole.
"""

import ast
import functools
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

Place = tuple[int, int]  # line and column, in characters
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COLLECTIONS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.expr_context)
LITERAL = (ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, *COLLECTIONS)


@dataclass(frozen=True)
class Piece:
    """A top-level statement: its text, and what it leads to."""

    text: str
    is_variable: bool
    names: frozenset[str]  # names that it uses
    alone: frozenset[str]  # those that occur otherwise than before a dot
    dotted: frozenset[str]  # whole chains of attributes, such as "data.root"
    stored: frozenset[str]  # names and chains that it gives a value to; its parameters, too
    imports: tuple[tuple[str, str], ...]  # imported within it: the name, and where it comes from
    strings: frozenset[str]  # string constants, of which some name a script
    binds: frozenset[str]  # names that are the module's from here on
    is_settled: bool  # means the same wherever it stands: a plain function, class or literal


@dataclass(frozen=True)
class Scope:
    """What a cell, a module or a script holds at its top level."""

    pieces: tuple[Piece, ...]  # all statements, in order; the text of an import is empty
    definitions: dict[str, tuple[Piece, ...]]  # of functions, classes and variables
    imports: dict[str, str]  # "F": "torch.nn.functional"

    @property
    def acts(self) -> tuple[Piece, ...]:
        """The statements that define nothing."""
        defining = {id(piece) for pieces in self.definitions.values() for piece in pieces}
        return tuple(p for p in self.pieces if p.text and id(p) not in defining)


# --- the text of a statement --------------------------------------------------------------------


def _place(lines: list[str], line: int, column: int) -> Place:
    """A place as ``ast`` gives it, in bytes, as ``tokenize`` gives it, in characters."""
    return line, len(lines[line - 1].encode()[:column].decode())


def _range(lines: list[str], node: ast.AST) -> tuple[Place, Place]:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    decorators = getattr(node, "decorator_list", [])
    if decorators:  # from the @ of the first, at the beginning of its line
        start = (decorators[0].lineno, 0)
    return _place(lines, *start), _place(lines, *end)


def _cut(lines: list[str], start: Place, end: Place) -> str:
    held = lines[start[0] - 1 : end[0]]
    held[-1] = held[-1][: end[1]]  # before the other end, which may be on the same line
    held[0] = held[0][start[1] :]
    return "\n".join(held)


def _docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))


def _origins(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, and where it comes from."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.split(".")[0]
            yield top, top


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
    """``node`` as it stands in ``source``, less what does not count: see the top of this file."""
    alone = _cut(source.split("\n"), *_range(source.split("\n"), node)) + "\n"
    tree, lines = ast.parse(alone), alone.split("\n")
    skipped = [_range(lines, part) for part in (*_docstrings(tree), *_imports(tree))]
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


# --- what a source defines, and what each definition leads to ------------------------------------


def _dotted(node: ast.AST) -> str | None:
    """``"a.b.c"`` of such an expression, None of another."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        front = _dotted(node.value)
        return front and f"{front}.{node.attr}"
    return None


def _binds(node: ast.AST) -> Iterator[str]:
    """The names that ``node`` binds, or deletes, in the scope in which it stands."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (bound for bound, _ in _origins(node))
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    named = (*DEFINITIONS, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)
    if isinstance(node, named):
        yield from filter(None, [getattr(node, "rest" if hasattr(node, "rest") else "name")])
    own = node.body if isinstance(node, DEFINITIONS) else []  # another scope
    for child in ast.iter_child_nodes(node):
        if child not in own:
            yield from _binds(child)


def _is_literal(node: ast.AST | None) -> bool:
    return node is None or all(isinstance(part, LITERAL) for part in ast.walk(node))


def _is_settled(node: ast.stmt, within_class: bool = False) -> bool:
    """Whether ``node`` only defines: it calls nothing, and reads no variable."""
    decorators = getattr(node, "decorator_list", [])
    if within_class:
        plain = ("property", "staticmethod", "classmethod")
        decorators = [d for d in decorators if not (isinstance(d, ast.Name) and d.id in plain)]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [part for target in targets for part in ast.walk(target)]
        names = (ast.Name, ast.Tuple, ast.List, ast.expr_context)
        evaluated = [getattr(node, "annotation", None)]
        settled = all(isinstance(p, names) for p in parts) and _is_literal(node.value)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        evaluated = [node.args, node.returns]
        settled = all(map(_is_literal, [*node.args.defaults, *node.args.kw_defaults]))
    elif isinstance(node, ast.ClassDef):
        evaluated = node.bases
        documented = ast.get_docstring(node, clean=False) is not None
        body = [part for part in node.body[documented:] if not isinstance(part, ast.Pass)]
        settled = not node.keywords and all(_is_settled(part, True) for part in body)
    else:
        return False
    calls = [p for e in evaluated if e for p in ast.walk(e) if isinstance(p, ast.Call)]
    return settled and not decorators and not calls


def _piece(source: str, node: ast.stmt) -> Piece:
    documentation = {id(d.value) for d in _docstrings(node)}
    parts = [part for part in ast.walk(node) if id(part) not in documentation]
    names = [part for part in parts if isinstance(part, ast.Name)]
    chains = [part for part in parts if isinstance(part, ast.Attribute)]
    heads = {id(chain.value) for chain in chains}
    values = (part.value for part in parts if isinstance(part, ast.Constant))
    return Piece(
        text=_text(source, node),
        is_variable=isinstance(node, ast.Assign | ast.AnnAssign),
        names=frozenset(name.id for name in names),
        alone=frozenset(name.id for name in names if id(name) not in heads),
        dotted=frozenset(filter(None, (_dotted(c) for c in chains if id(c) not in heads))),
        stored=frozenset(
            {name.id for name in names if isinstance(name.ctx, ast.Store)}
            | {part.arg for part in parts if isinstance(part, ast.arg)}
            | {_dotted(c) or "" for c in chains if not isinstance(c.ctx, ast.Load)}
        ),
        imports=tuple(sorted({o for imported in _imports(node) for o in _origins(imported)})),
        strings=frozenset(v for v in values if isinstance(v, str)),
        binds=frozenset(_binds(node)),
        is_settled=_is_settled(node),
    )


def _defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, DEFINITIONS):
        return [node.name]
    targets = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return [n.id for n in names if isinstance(n.ctx, ast.Store)]


@functools.lru_cache(maxsize=2048)
def scope_of(source: str) -> Scope:
    """Return what ``source``, a cell, module or script, holds; nothing if it is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic, or a reader's half-written cell
        return Scope((), {}, {})
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    pieces = tuple(_piece(source, node) for node in body)
    definitions: dict[str, tuple[Piece, ...]] = {}
    for node, piece in zip(body, pieces, strict=True):
        for name in _defined_names(node):
            definitions[name] = (*definitions.get(name, ()), piece)
    return Scope(pieces, definitions, dict(o for node in _imports(tree) for o in _origins(node)))
