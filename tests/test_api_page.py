"""The page of the helpers lists what there is, each module and each name once."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from notebooks import BOOK, ROOT

UTILS = ROOT / "utils"
spec = importlib.util.spec_from_file_location("api_page", ROOT / "tools" / "api_page.py")
api_page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api_page)


def listed(text: str) -> list[str]:
    return [line.split("`")[1] for line in text.splitlines() if line.startswith("- {mod}`")]


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A small package, with a folder whose front door hands names on."""
    monkeypatch.setattr(api_page, "FAMILIES", {"Doors": ("door", "alone"), "Shown": ("drawn",)})
    sources = {
        "__init__": "",
        "alone": '"""Stands alone. More."""\n__all__ = ["far"]\nfrom house import drawn\n'
        "from house.far import far\n",
        "door": '"""Opens::"""\nfrom house.parts.wall import build as build, hidden\n',
        "drawn": '"""Is it drawn? Yes."""\nfrom house.parts.wall import Wall\n',
        "far": '"""Far away."""\ndef far():\n    """Go."""\ndef near():\n    """Stay."""\n',
        "left": '"""Nobody imports it."""\n',
        "_private": "",
        "parts/__init__": '"""The parts of :mod:`house.door`."""\n',
        "parts/wall": '"""Stands, as ``wall``."""\ndef build():\n    """Do."""\n'
        'class Wall:\n    """Stone."""\ndef bare(): ...\ndef _own():\n    """Own."""\n',
        "parts/__main__": "",
    }
    for name, source in sources.items():
        path = tmp_path / "house" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path / "house"


def test_every_module_of_utils_stands_on_the_page_once_and_in_a_family() -> None:
    assert api_page.PLACE in (BOOK / "api.md").read_text(encoding="utf-8")
    text = api_page.sections(UTILS)
    paths = [p for p in UTILS.rglob("*.py") if p.stem == "__init__" or p.stem[0] != "_"]
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in paths}
    names = {name.removesuffix(".__init__") for name in names} - {"utils"}
    assert sorted(listed(text)) == sorted(names)
    assert all(f"\n.. automodule:: {name}\n" in text for name in names)
    assert f"## {api_page.OTHERS}\n" not in text, "name their family in tools/api_page.py"


def test_no_name_of_utils_is_documented_twice() -> None:
    trees = api_page.modules(UTILS)
    own = Counter(d.name for t in trees.values() for d in t.body if api_page._is_public(d))
    assert own == Counter(shown for name in trees for shown in api_page.members(name, trees))
    assert "recorded" in api_page.members("utils.record", trees), "where pages import it from"


def test_parts_stand_behind_what_uses_them(package) -> None:
    text = api_page.sections(package)
    assert text.split("\n\n## ")[0].splitlines() == [
        "**Doors**",
        "",
        "- {mod}`house.door`: Opens.",
        "- {mod}`house.parts`: The parts of `house.door`.",
        "- {mod}`house.parts.wall`: Stands, as `wall`.",
        "- {mod}`house.alone`: Stands alone.",
        "- {mod}`house.far`: Far away.",
        "",
        "**Shown**",
        "",
        "- {mod}`house.drawn`: Is it drawn?",
        "",
        "**Others**",
        "",
        "- {mod}`house.left`: Nobody imports it.",
    ]


def test_a_name_that_is_handed_on_stands_at_the_door_only(package) -> None:
    trees = api_page.modules(package)
    shown = {name: api_page.members(name, trees) for name in trees}
    assert {name: members for name, members in shown.items() if members} == {
        "house.door": ["build"],
        "house.parts.wall": ["Wall"],
        "house.alone": ["far"],
        "house.far": ["near"],
    }


def test_signatures_are_code_without_what_it_does(package) -> None:
    (package / "parts" / "wall.py").write_text(
        '"""Stands."""\ndef build(a: int = 1) -> str:\n    """Do."""\n    return "secret"\n'
        'class Wall:\n    """Stone."""\n    high: float\n    _deep = 2\n'
        '    @property\n    def area(self):\n        """In m²."""\n        return self._deep\n'
        '    def _own(self):\n        """Own."""\n'
    )
    trees = api_page.modules(package)
    assert api_page.signatures("house.parts", trees) == ""
    assert api_page.signatures("house.door", trees) == (
        '```python\ndef build(a: int=1) -> str:\n    """Do."""\n```'
    )
    assert api_page.signatures("house.parts.wall", trees) == (
        '```python\nclass Wall:\n    """Stone."""\n    high: float\n\n'
        '    @property\n    def area(self):\n        """In m²."""\n```'
    )
    assert '```python\ndef near():\n    """Stay."""' in api_page.sections(
        package, api_page.signatures
    )


def test_a_module_without_docstring_is_named(package) -> None:
    (package / "parts" / "mute.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"house\.parts\.mute has no docstring"):
        api_page.sections(package)
