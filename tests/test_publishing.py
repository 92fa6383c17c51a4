"""What pages say of themselves, and which buttons they have: with a public address and without."""

import subprocess
from types import SimpleNamespace

import pytest
from docutils.core import publish_doctree
from PIL import Image
from sphinx.errors import ConfigError

import address
import book_publishing
from notebooks import BOOK, ROOT

HUB, LAB = "github.com", "gitlab.com"


@pytest.mark.parametrize(
    "remote, host, path",
    [
        ("https://github.com/owner/a-book.git", HUB, "owner/a-book"),
        ("https://github.com/owner/a.book/", HUB, "owner/a.book"),
        ("https://someone:ghp_secret@github.com/owner/book", HUB, "owner/book"),
        ("git@github.com:owner/book.git\n", HUB, "owner/book"),
        ("ssh://git@github.com:22/owner/book.git", HUB, "owner/book"),
        ("https://gitlab.com/group/part/book.git", LAB, "group/part/book"),
        ("git@gitlab.com:owner/book.git", LAB, "owner/book"),
    ],
)
def test_public_addresses(remote, host, path) -> None:
    found = address.parse(remote)
    assert found == address.Repository(host, path)
    assert found.url == f"https://{host}/{path}"


@pytest.mark.parametrize(
    "remote",
    [
        "",
        "/home/me/book.git",
        "file:///home/me/github.com/book",
        "https://git.company.example/owner/book.git",
        "https://notgithub.com/owner/book",
        "https://github.com.evil.example/owner/book",
        "https://github.com/owner",
        "https://github.com/owner/book/tree/main",
        'https://github.com/owner/book"><script>',
        "git@host:github.com/owner/book",
    ],
)
def test_other_addresses_are_not_public(remote) -> None:
    assert address.parse(remote) is None


def test_the_address_is_git_s_remote_unless_one_is_given(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("BOOK_REPOSITORY", raising=False)
    assert address.repository(tmp_path / "nowhere") is None
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert address.repository(tmp_path) is None
    subprocess.run([*git, "remote", "add", "origin", "git@github.com:a/book.git"], check=True)
    assert address.repository(tmp_path).url == "https://github.com/a/book"
    monkeypatch.setenv("BOOK_REPOSITORY", "https://gitlab.com/b/book")
    assert address.repository(tmp_path).url == "https://gitlab.com/b/book"
    monkeypatch.setenv("BOOK_REPOSITORY", "")
    assert address.repository(tmp_path) is None
    monkeypatch.setenv("BOOK_REPOSITORY", "my book")
    with pytest.raises(ValueError, match="BOOK_REPOSITORY=my book is no repository"):
        address.repository(tmp_path)


def test_the_address_of_the_pages(monkeypatch) -> None:
    monkeypatch.delenv("BOOK_SITE", raising=False)
    assert address.site() is None
    monkeypatch.setenv("BOOK_SITE", "https://owner.github.io/book")
    assert address.site() == "https://owner.github.io/book/"
    monkeypatch.setenv("BOOK_SITE", "owner.github.io")
    with pytest.raises(ValueError, match=r"BOOK_SITE=owner\.github\.io is no address"):
        address.site()


def test_buttons() -> None:
    assert book_publishing.buttons(None) == {}
    on_hub = book_publishing.buttons(address.Repository(HUB, "owner/book"))
    assert on_hub["repository_url"] == "https://github.com/owner/book"
    assert on_hub["use_edit_page_button"] and on_hub["use_issues_button"]
    assert {"binderhub_url", "colab_url"} < on_hub["launch_buttons"].keys()
    on_lab = book_publishing.buttons(address.Repository(LAB, "owner/book"))
    assert "colab_url" not in on_lab["launch_buttons"]


def configured(monkeypatch, **environment: str) -> SimpleNamespace:
    for name in ("BOOK_REPOSITORY", "BOOK_SITE"):
        monkeypatch.setenv(name, environment.get(name, ""))
    config = SimpleNamespace(html_theme_options={"repository_url": ""}, html_baseurl="")
    book_publishing.configure(SimpleNamespace(srcdir=ROOT), config)
    return config


def test_the_theme_is_told(monkeypatch) -> None:
    assert configured(monkeypatch).html_theme_options == {"repository_url": ""}
    book = configured(monkeypatch, BOOK_REPOSITORY="https://github.com/a/b", BOOK_SITE="http://x/y")
    assert book.html_theme_options["launch_buttons"]
    assert book.html_baseurl == "http://x/y/"
    with pytest.raises(ConfigError, match="BOOK_REPOSITORY"):
        configured(monkeypatch, BOOK_REPOSITORY="github")


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


def test_description_is_of_the_first_paragraph() -> None:
    page = publish_doctree("Title\n=====\n\nFeed the *GPU*. More.\n\nLast.")
    assert book_publishing.description(page) == "Feed the GPU."
    assert book_publishing.description(publish_doctree("")) == ""


def test_tags() -> None:
    said = {"front": False, "page": "book/a.html"}
    alone = list(book_publishing.tags('A "b"', "Say <it>.", "Book", **said, site=None))
    assert '<meta name="description" content="Say &lt;it&gt;.">' in alone
    assert '<meta property="og:title" content="A &quot;b&quot;">' in alone
    assert not any("http" in tag or "image" in tag for tag in alone)
    there = list(book_publishing.tags("A", "", "Book", **said, site="https://a.b/c/"))
    assert '<meta property="og:url" content="https://a.b/c/book/a.html">' in there
    assert '<meta property="og:image" content="https://a.b/c/_static/card.png">' in there
    assert not any("description" in tag for tag in there)


def test_map_of_the_site(tmp_path) -> None:
    app = SimpleNamespace(
        config=SimpleNamespace(html_baseurl="https://a.b/"),
        builder=SimpleNamespace(format="html", get_target_uri=lambda name: f"{name}.html"),
        env=SimpleNamespace(found_docs={"book/index", "book/a&b"}),
        outdir=tmp_path,
    )
    book_publishing.write_map(app, None)
    written = (tmp_path / "sitemap.xml").read_text(encoding="utf-8")
    assert written.index("https://a.b/book/a&amp;b.html") < written.index("book/index.html")
    (tmp_path / "sitemap.xml").unlink()
    app.config.html_baseurl = ""
    book_publishing.write_map(app, None)
    assert not (tmp_path / "sitemap.xml").exists()


def test_the_card_shows_all_records() -> None:
    card = Image.open(BOOK / "_static" / "card.png")
    assert card.size == (1200, 630)
    known = Image.open(BOOK / "images" / "predictions.png").text["Source"]
    assert card.text["Source"] == known, "run python book/images/card.py"


def test_the_missing_page_finds_its_files_from_any_folder() -> None:
    app = SimpleNamespace(
        config=SimpleNamespace(html_title="Book", html_baseurl="https://a.b/", root_doc="index"),
        builder=SimpleNamespace(get_target_uri=lambda name: f"{name}.html"),
    )
    base = '<base href="https://a.b/">'
    for name, site, there in [("404", True, True), ("404", False, False), ("a", True, False)]:
        app.config.html_baseurl = "https://a.b/" if site else ""
        context = {"title": "A <code>b</code> &amp; c", "metatags": "<known>"}
        book_publishing.complete_head(app, name, "page.html", context, None)
        assert (base in context["metatags"]) == there
        assert "<known>" in context["metatags"] and 'content="A b &amp; c"' in context["metatags"]
