"""The page of the helpers: every file and package of utils, every name that pages import."""

import re
from pathlib import Path

import as_markdown
from notebooks import BOOK, ROOT

PAGE = (BOOK / "api.md").read_text(encoding="utf-8")
MODULES = re.findall(r"^\.\. automodule:: (utils\.\w+)$", PAGE, re.MULTILINE)


def test_the_page_has_every_file_and_package_of_utils() -> None:
    """A package at its door only: what stands inside, pages do not import."""
    listed = re.findall(r"^- \{mod\}`(utils\.\w+)`: \S", PAGE, re.MULTILINE)
    inits = {path.parent for path in (ROOT / "utils").glob("*/__init__.py")}
    there = {path.stem for path in [*(ROOT / "utils").glob("[!_]*.py"), *inits]}
    assert listed == MODULES and set(MODULES) == {f"utils.{name}" for name in there}


def test_every_name_of_a_door_is_documented_once(site) -> None:
    html = (site / "book" / "api.html").read_text(encoding="utf-8")
    assert str(ROOT) not in html, "no folder of this machine"
    for module in MODULES:
        names = re.findall(r"^(?:def|class) (\w+)", as_markdown.signatures(module), re.MULTILINE)
        found = {name: html.count(f'id="{module}.{name}"') for name in names}
        assert found and set(found.values()) == {1}, (module, found)


def test_signatures_are_code_without_what_it_does(tmp_path: Path, monkeypatch) -> None:
    sources = {
        "__init__": "from .wall import Wall, build\n__all__ = ['Wall', 'build']",
        "wall": '''
def build(a: int = 1) -> str:
    """Do."""
    return "secret"
class Wall:
    """Stone."""
    high: float
    _deep = 2
    @property
    def area(self):
        """In m²."""
        return self._deep
    def _own(self):
        """Own."""
def bare(): ...
def inside():
    """Stay."""
''',
    }
    (tmp_path / "house").mkdir()
    for name, source in sources.items():
        (tmp_path / "house" / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    wall = 'class Wall:\n    """Stone."""\n    high: float\n\n    @property\n    def area(self):'
    wall = f'{wall}\n        """In m²."""'
    build = 'def build(a: int=1) -> str:\n    """Do."""'
    inside = 'def inside():\n    """Stay."""'
    assert as_markdown.signatures("house") == f"```python\n{wall}\n\n\n{build}\n```"
    order = [build, wall, inside]
    assert as_markdown.signatures("house.wall") == "```python\n" + "\n\n\n".join(order) + "\n```"
    page = "Up.\n\n```{eval-rst}\n.. automodule:: house\n\n.. autofunction:: house.build\n```"
    assert as_markdown.prose(page, str) == f"Up.\n\n{as_markdown.signatures('house')}"
