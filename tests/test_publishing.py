"""What pages say of themselves, and which buttons they have: with a public address and without."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import jinja2
import pytest
from docutils.core import publish_doctree
from PIL import Image
from sphinx.errors import ConfigError

import address
import book_publishing
import broken
import colab
from cases import cases
from notebooks import BOOK, ROOT, read

HUB, LAB = "https://github.com/", "https://gitlab.com/"
OPEN_GRAPH = re.compile('<meta property="og:([^"]*)" content="([^"]*)">')


@pytest.mark.parametrize("remote, public", cases("test_public_addresses"))
def test_public_addresses(remote, public) -> None:
    assert address.parse(remote) == public


def test_the_address_is_git_s_remote_unless_one_is_given(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("BOOK_REPOSITORY", raising=False)
    assert address.repository(tmp_path / "nowhere") == ""
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert address.repository(tmp_path) == ""
    subprocess.run([*git, "remote", "add", "origin", "git@github.com:a/book.git"], check=True)
    assert address.repository(tmp_path) == f"{HUB}a/book"
    for given in (f"{LAB}b/book", ""):
        monkeypatch.setenv("BOOK_REPOSITORY", given)
        assert address.repository(tmp_path) == given


def configured(monkeypatch, repository: str = "", site: str = "") -> SimpleNamespace:
    monkeypatch.setenv("BOOK_REPOSITORY", repository)
    monkeypatch.setenv("BOOK_SITE", site)
    config = SimpleNamespace(html_theme_options={"repository_url": ""}, html_baseurl="")
    book_publishing.configure(SimpleNamespace(srcdir=ROOT), config)
    return config


def test_the_theme_is_told(monkeypatch) -> None:
    nowhere = configured(monkeypatch)
    assert (nowhere.html_theme_options, nowhere.html_baseurl) == ({"repository_url": ""}, "")
    on_hub = configured(monkeypatch, f"{HUB}a/b", "http://x/y")
    assert on_hub.html_baseurl == "http://x/y/"
    assert on_hub.html_theme_options["repository_url"] == f"{HUB}a/b"
    assert on_hub.html_theme_options["use_edit_page_button"] is True
    launch = on_hub.html_theme_options["launch_buttons"]
    assert {"binderhub_url", "colab_url"} < launch.keys()
    on_lab = configured(monkeypatch, f"{LAB}a/b").html_theme_options["launch_buttons"]
    assert launch.keys() - on_lab.keys() == {"colab_url"}, "Colab opens nothing from elsewhere"
    with pytest.raises(ConfigError, match="BOOK_REPOSITORY=my book is no repository"):
        configured(monkeypatch, "my book")
    with pytest.raises(ConfigError, match=r"BOOK_SITE=owner\.github\.io is no address"):
        configured(monkeypatch, site="owner.github.io")


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("Feed the GPU. Then wait.", "Feed the GPU."),
        ("Is it 1.5 times\nas fast? Yes.", "Is it 1.5 times as fast?"),
        ("Torch 2.11 runs e.g. here", "Torch 2.11 runs e.g. here"),
        ("word " * 60 + "end.", "word " * 38 + "word…"),
        ("先测量。再修改。", "先测量。"),
    ],
)
def test_first_sentence(text, sentence) -> None:
    found = book_publishing.first_sentence(text)
    assert found == sentence and len(found) <= book_publishing.LONGEST


def head(source: str, site: str, template: str = "head.html", **page: str) -> str:
    """What a template makes of a page."""
    context = {"title": "A <code>b</code> &amp; c", "docstitle": "Book", "root_doc": "index"}
    context |= {"pagename": "book/a", "pageurl": f"{site}book/a.html", "pathto": str, **page}
    app = SimpleNamespace(config=SimpleNamespace(html_baseurl=site))
    doctree = publish_doctree(source) if source else None
    book_publishing.describe(app, "book/a", "page.html", context, doctree)
    theme = {"page.html": "{% block htmltitle %}{% endblock %}{% block docs_body %}{% endblock %}"}
    loaders = [jinja2.FileSystemLoader(ROOT / "tools" / "templates"), jinja2.DictLoader(theme)]
    found = jinja2.Environment(loader=jinja2.ChoiceLoader(loaders)).get_template(template)
    return found.render(context)


def test_head_of_a_page() -> None:
    here = head('Title\n=====\n\nSay *"<it>"*. More.\n\nLast.', "", sourcename="a.md")
    said = "Say &#34;&lt;it&gt;&#34;."
    assert f'<meta name="description" content="{said}">' in here
    assert '<link rel="alternate" type="text/markdown" href="a.md">' in here
    tags = {"description": said, "title": "A b &amp; c", "type": "article"}
    assert tags.items() <= dict(OPEN_GRAPH.findall(here)).items()
    assert "http" not in here and "image" not in here
    there = head("", "https://a.b/c/", pagename="index")
    tags = {"url": "https://a.b/c/book/a.html", "image": "https://a.b/c/_static/card.png"}
    assert (tags | {"title": "Book"}).items() <= dict(OPEN_GRAPH.findall(there)).items()
    assert "description" not in there and "alternate" not in there


def test_the_missing_page_finds_its_files_from_any_folder() -> None:
    there, here = (head("", site, "404.html") for site in ("https://a.b/", ""))
    assert there.index('<base href="https://a.b/">') < there.index("<title>") < there.index("<a ")
    assert "<base" not in here and '<a href="index">' in here


@pytest.mark.parametrize("site", ["", "https://a.b/"])
def test_map_of_the_site(tmp_path, site) -> None:
    app = MagicMock(outdir=tmp_path, **{"config.html_baseurl": site, "builder.format": "html"})
    app.builder.get_target_uri, app.env.found_docs = "{}.html".format, {"book/index", "book/a&b"}
    book_publishing.write_map(app, None)
    assert [path.name for path in tmp_path.iterdir()] == (["sitemap.xml"] if site else [])
    for path in tmp_path.iterdir():
        written = path.read_text(encoding="utf-8")
        assert written.index("https://a.b/book/a&amp;b.html") < written.index("book/index.html")


def test_on_colab_a_notebook_fetches_the_book(tmp_path, forked_pythons) -> None:
    """A clone stands in for the address, and a program that installs nothing for pip."""
    clone, alone = tmp_path / "clone", tmp_path / "alone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    colab.add_first_cells(clone, str(ROOT))
    cells = [cell.source for cell in read(clone / "book/61_profiler.ipynb").cells]
    imports = next(source for source in cells if "from utils" in source)
    assert "torch>=2.11" in cells[0] and "Sphinx" not in cells[0]
    alone.mkdir()
    (alone / "pip").write_text("#!/bin/sh\necho installed >>calls\n")
    (alone / "pip").chmod(0o755)
    program = "from IPython.core.interactiveshell import InteractiveShell as S; s = S.instance()\n"
    program += f"for cell in {[cells[0], imports]!r}: s.run_cell(cell).raise_error()\n"
    program += "import utils; print(utils.__file__)"
    path = {**os.environ, "PATH": f"{alone}:{os.environ['PATH']}", "IPYTHONDIR": str(alone)}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=alone, env=path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert str(alone / "the-book" / "utils") in result.stdout.splitlines()[-1]
    assert (alone / "the-book/book/calls").exists()


def test_the_button_for_colab_leads_there() -> None:
    links = [{"text": text, "url": "https://x/blob/main/a.ipynb"} for text in ("Colab", "Binder")]
    book_publishing.lead_to_colab(None, "", "", {"header_buttons": [{"buttons": links}]}, None)
    assert [link["url"].split("/")[4] for link in links] == ["colab", "main"]


def test_what_broke_is_said_by_file(monkeypatch) -> None:
    monkeypatch.setattr(broken, "version", lambda name: "3.0")
    case = '<testcase classname="{}" name="{}"><failure message="{}"/></testcase>'
    cases = [case.format("book/a.ipynb", f"Cell {i}", f"no {i}&#10;more") for i in (1, 2)]
    assert broken.broken(f"<all>{''.join(cases)}<testcase/></all>").splitlines() == [
        "2 of 3 tests failed under torch 3.0.",
        "- **book/a.ipynb**, Cell 1: `no 1` and 1 more",
    ]


def test_the_card_shows_all_records() -> None:
    card = Image.open(BOOK / "_static" / "card.png")
    assert card.size == (1200, 630)
    known = Image.open(BOOK / "images" / "predictions.png").text["Source"]
    assert card.text["Source"] == known, "run python book/images/card.py"
