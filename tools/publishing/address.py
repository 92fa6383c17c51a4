"""The book's public address, if it has one: given, or read from git's remote ``origin``."""

import os
import re
import subprocess
from pathlib import Path

# Whatever stands before the @ (a user, perhaps with a token) is nobody's business.
_REMOTE = re.compile(
    r"(?:(?:https|ssh)://(?:[^@/\s]*@)?(?P<host>git(?:hub|lab)\.com)(?::\d+)?/"
    r"|[^@/\s]+@(?P<short>git(?:hub|lab)\.com):/?)"
    r"(?P<path>[\w.-]+(?:/[\w.-]+)*?/[\w.-]+?)(?:\.git)?/?"
)


def parse(remote: str) -> str:
    """Return the address, for a browser and for ``git clone``, that a remote of git names.

    It is empty if that is no repository on GitHub or GitLab.
    """
    found = _REMOTE.fullmatch(remote.strip())
    host, path = (found["host"] or found["short"], found["path"]) if found else ("", "")
    is_one = host and (host != "github.com" or path.count("/") == 1)  # on GitLab there are groups
    return f"https://{host}/{path}" if is_one else ""


def repository(root: Path) -> str:
    """Return the address of the book's repository; nothing if it has none.

    It is what BOOK_REPOSITORY says, else the remote ``origin``. An empty BOOK_REPOSITORY means
    none, whatever git says.

    Raises
    ------
    ValueError
        If BOOK_REPOSITORY is no address on GitHub or GitLab.
    """
    given = os.environ.get("BOOK_REPOSITORY")
    if given and not parse(given):
        raise ValueError(
            f"BOOK_REPOSITORY={given} is no repository on GitHub or GitLab: write "
            "https://github.com/OWNER/NAME"
        )
    if given is None:
        command = ["git", "-C", str(root), "remote", "get-url", "origin"]
        try:
            given = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):  # no git, no clone, no remote
            given = ""
    return parse(given)


def site() -> str:
    """Return where the pages are published, with a slash at the end: what BOOK_SITE says.

    Raises
    ------
    ValueError
        If that is no address.
    """
    given = os.environ.get("BOOK_SITE", "")
    if given and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", given):
        raise ValueError(f"BOOK_SITE={given} is no address: write https://OWNER.github.io/NAME/")
    return f"{given.rstrip('/')}/" if given else ""
