"""The built pages and a browser, for the tests that look at them; look.js is what they ask it.

Where Chromium is missing these tests are skipped; with REQUIRE_SITE_TESTS=1 they fail instead.
"""

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import forks

ROOT = Path(__file__).resolve().parent.parent
LOOK = (ROOT / "tests" / "look.js").read_text(encoding="utf-8")
DESKTOP, PHONE = {"width": 1280, "height": 844}, {"width": 390, "height": 844}
LOCAL = ("file:", "data:", "blob:", "about:")
# Console messages that are no fault of a page: the older theme, which Python 3.10 gets, loads
# fonts, and browsers refuse them to pages read from a disk.
HARMLESS = re.compile(r"font at 'file://.* has been blocked by CORS policy|net::ERR_FAILED")


def unavailable(reason: str) -> None:
    """Skip, or fail where these tests are required."""
    if os.environ.get("REQUIRE_SITE_TESTS") == "1":
        pytest.fail(f"REQUIRE_SITE_TESTS=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("Playwright is not installed")
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable")
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, names)), playwright.chromium.executable_path)
        if not Path(path).exists():
            unavailable("there is no Chromium (Debian: apt install chromium-headless-shell)")
        arguments = ["--no-sandbox", "--disable-gpu"]
        chromium = playwright.chromium.launch(executable_path=path, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of the pages, built here and now, outside the repository.

    Built once, also where several processes run the tests: the first to ask builds, others wait.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    folder.mkdir(exist_ok=True)
    html = folder / "_build" / "html"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # also given back by a process that dies
        if not (folder / "built").exists():
            build(folder)
            (folder / "built").touch()
    return html


def build(folder: Path) -> None:
    start = forks.Popen if hasattr(os, "fork") else subprocess.Popen  # with torch imported
    command = "from jupyter_book.cli.main import main; main()"
    options = ["build", ".", "-W", "-n", "--keep-going", "--path-output", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = start([sys.executable, "-c", command, *options], cwd=ROOT, **pipes)
    said = process.communicate()[0]
    assert process.returncode == 0, said[-5000:]


@pytest.fixture(scope="module")
def open_page(browser, site):
    """Open a page with the network off; the result has what it asked for and complained about.

    Each page has a browser's profile of its own, unless it shares one with others that are only
    looked at. Those are opened in one tab, one after another: a new tab costs more than a page.
    """
    contexts = []

    def new_tab() -> SimpleNamespace:
        contexts.append(browser.new_context(viewport=DESKTOP, offline=True, color_scheme="light"))
        contexts[-1].grant_permissions(["clipboard-read", "clipboard-write"])
        tab = SimpleNamespace(page=contexts[-1].new_page(), requests=[], errors=[])
        complain = lambda text: HARMLESS.search(text) or tab.errors.append(text)  # noqa: E731
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.on("console", lambda m: complain(m.text) if m.type == "error" else None)
        tab.page.on("pageerror", lambda error: complain(str(error)))
        return tab

    shared_tab = functools.cache(new_tab)

    def open_page(name: str, query: str = "", *, shared: bool = False) -> SimpleNamespace:
        tab = shared_tab() if shared else new_tab()
        if shared:
            tab.page.goto("about:blank")  # before its size changes, which would be a page's work
            tab.page.set_viewport_size(DESKTOP)
        tab.requests, tab.errors = [], []
        tab.page.goto((site / f"{name}.html").as_uri() + query)
        tab.page.evaluate("window.MathJax?.startup?.promise")  # waits until formulas are set
        return tab

    yield open_page
    for context in contexts:
        context.close()


def look(page, question: str, within: str = "body") -> object:
    """Ask an open page one of the questions of look.js."""
    return page.evaluate(f"within => ({LOOK.strip()}).{question}(within)", within)


def faults(page, within: str = "body") -> list[str]:
    """Return what makes it hard to use, for who sees it badly or not, and where it is.

    Code on the page loses its colors: look at nothing else afterwards.
    """
    try:
        from axe_playwright_python.base import AXE_FILE_PATH
    except ImportError:
        unavailable("axe-playwright-python is not installed")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    return look(page, "pale", within) + look(page, "serious", within)
