"""Write the sections of book/api.md from the package, as a Sphinx extension.

Every module of ``utils`` gets a section; the first sentence of its docstring is its line in the
list on top. Nobody keeps that list: a module stands in the family of the one that imports it, and
only those that pages import from are named here.
"""

import ast
import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, PLACE = "book/api", "<!-- the modules -->"
FAMILIES = {
    "Measuring": ("record", "timing", "gpt2_step"),
    "The machine": ("device", "gpus", "diagnosis", "memory"),
    "The profile": ("profile", "bounds"),
    "Ranks": ("ranks",),
    "Showing": ("plotting", "cards", "models", "data"),
}
OTHERS = "Others"  # of modules that no other imports: a test asks for their family


def modules(package: Path) -> dict[str, ast.Module]:
    """Return the source of each module below ``package``, by its full name; not of private ones."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        *parts, last = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts if last == "__init__" else [*parts, last])
        if "._" not in name and name != package.name:
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@functools.cache
def imports(tree: ast.Module) -> list[tuple[str, str | None]]:
    """Return each thing that a module imports, with the name by which it hands it on, if it does.

    A name is handed on that stands in ``__all__``, or is imported as itself: ``import a as a``.
    """
    listed = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                handed = alias.name in {*listed, alias.asname}
                found.append((f"{node.module}.{alias.name}", alias.name if handed else None))
    return found


def arranged(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Return the modules of each family, each behind the first that imports it."""
    package = next(iter(trees)).split(".")[0]
    named = {f"{package}.{name}" for names in FAMILIES.values() for name in names}
    placed: dict[str, str] = {}

    def place(name: str, family: str) -> None:
        if name in trees and name not in placed:
            place(name.rpartition(".")[0], family)  # the package that it is a part of
            placed.setdefault(name, family)
            for origin, _ in imports(trees[name]):
                for part in (origin, origin.rpartition(".")[0]):
                    if part not in named:
                        place(part, family)

    for family, names in FAMILIES.items():
        for name in names:
            place(f"{package}.{name}", family)
    for name in trees:
        place(name, placed.get(name.rpartition(".")[0], OTHERS))
    return {f: [n for n in placed if placed[n] == f] for f in dict.fromkeys(placed.values())}


def first_sentence(name: str, tree: ast.Module) -> str:
    """Return the first sentence of the docstring of the module ``name``, on one line.

    Raises
    ------
    ValueError
        If it has none.
    """
    paragraph = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
    if not paragraph:
        raise ValueError(f"{name} has no docstring: say in its first sentence what its job is")
    found = re.match(r".+?[.?!](?= |$)", paragraph)
    return found[0] if found else paragraph.rstrip(":") + "."


def doors(trees: dict[str, ast.Module]) -> dict[str, str]:
    """Return where each name that is handed on is found by readers, by where it is defined."""
    defined = set(_defined(trees))
    return {
        origin: f"{door}.{handed}"
        for door, tree in trees.items()
        for origin, handed in imports(tree)
        if handed and origin in defined
    }


def members(name: str, trees: dict[str, ast.Module]) -> list[str]:
    """Return what is documented at ``name``: its own, but for what another hands on, and that."""
    elsewhere = doors(trees)
    shown = [n for n in _defined(trees) if n not in elsewhere] + list(elsewhere.values())
    return [n.rpartition(".")[2] for n in shown if n.rpartition(".")[0] == name]


def _defined(trees: dict[str, ast.Module]) -> list[str]:
    return [f"{name}.{n.name}" for name, tree in trees.items() for n in tree.body if _is_public(n)]


def _is_public(node: ast.stmt) -> bool:
    defines = isinstance(node, ast.FunctionDef | ast.ClassDef)
    return defines and node.name[0] != "_" and bool(ast.get_docstring(node, clean=False))


def directive(name: str, trees: dict[str, ast.Module]) -> str:
    """Return what makes Sphinx document the module ``name``."""
    shown = ", ".join(members(name, trees))
    option = f"\n   :members: {shown}" * bool(shown)
    return f"```{{eval-rst}}\n.. automodule:: {name}{option}\n```"


def signatures(name: str, trees: dict[str, ast.Module]) -> str:
    """Return what is documented at ``name`` as code: signatures and docstrings."""
    nodes = {f"{m}.{n.name}": n for m, tree in trees.items() for n in tree.body if _is_public(n)}
    origins = {door: origin for origin, door in doors(trees).items()}
    names = [f"{name}.{member}" for member in members(name, trees)]
    shown = [ast.unparse(_outline(nodes[origins.get(full, full)])) for full in names]
    return "```python\n" + "\n\n\n".join(shown) + "\n```" if shown else ""


def _outline(node: ast.stmt) -> ast.stmt:
    """A function without its body; a class with its fields and methods, and no more."""
    if isinstance(node, ast.AnnAssign):
        return node
    inside = node.body[1:] if isinstance(node, ast.ClassDef) else []
    kept = [_outline(n) for n in inside if isinstance(n, ast.AnnAssign) or _is_public(n)]
    outline = copy.copy(node)
    outline.body = [node.body[0], *kept]
    return outline


def sections(package: Path, block: Callable[..., str] = directive) -> str:
    """Return a list of all modules and a section for each, as MyST Markdown.

    ``block`` writes what stands in a module's section: :func:`directive`, or :func:`signatures`.
    """
    trees = modules(package)
    jobs = {name: first_sentence(name, tree) for name, tree in trees.items()}
    overview, text = [], []
    for family, names in arranged(trees).items():
        overview += [f"**{family}**", "\n".join(f"- {{mod}}`{n}`: {_md(jobs[n])}" for n in names)]
        text.append(f"## {family}")
        for name in names:
            text.append(f"### `{name}`\n\n{block(name, trees)}")
    return "\n\n".join(overview + text)


def _md(text: str) -> str:
    """Code and names of reStructuredText as Markdown writes them."""
    return re.sub(r"``(.+?)``|:\w+:`(.+?)`", r"`\1\2`", text)


def write(app, name: str, source: list[str]) -> None:
    """Put the sections into the page when Sphinx reads it, and again when ``utils`` changes."""
    if name == PAGE:
        source[0] = source[0].replace(PLACE, sections(ROOT / "utils"))
        for folder in {path.parent for path in (ROOT / "utils").rglob("*.py")}:
            app.env.note_dependency(str(folder))


def resolve(app, env, node, content):
    """Let a docstring name a thing by where it is defined, though it stands where it is found."""
    name = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not name.startswith("utils."):  # as of most there are
        return None
    found = doors(modules(ROOT / "utils")).get(name)
    if found is None:
        return None
    page, kind = node["refdoc"], node["reftype"]
    return env.get_domain("py").resolve_xref(env, page, app.builder, kind, found, node, content)


def setup(app) -> dict[str, bool]:
    """Let Sphinx call :func:`write` and :func:`resolve`."""
    app.connect("source-read", write)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
