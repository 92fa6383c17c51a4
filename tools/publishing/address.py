"""The book's public address, if it has one: given, or read from git's remote ``origin``."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Whatever stands before the @ (a user, perhaps with a token) is nobody's business.
_REMOTE = re.compile(
    r"(?:(?:https|ssh)://(?:[^@/\s]*@)?(?P<host>git(?:hub|lab)\.com)(?::\d+)?/"
    r"|[^@/\s]+@(?P<short>git(?:hub|lab)\.com):/?)"
    r"(?P<path>[\w.-]+(?:/[\w.-]+)*?/[\w.-]+?)(?:\.git)?/?"
)


@dataclass(frozen=True)
class Repository:
    """A public repository."""

    host: str  # "github.com" or "gitlab.com"
    path: str  # "owner/name", on GitLab perhaps with groups between

    @property
    def url(self) -> str:
        """Its address for a browser and for ``git clone``."""
        return f"https://{self.host}/{self.path}"


def parse(remote: str) -> Repository | None:
    """Return the repository that a remote of git names, None if it is not on GitHub or GitLab."""
    found = _REMOTE.fullmatch(remote.strip())
    if not found:
        return None
    host, path = found["host"] or found["short"], found["path"]
    return None if host == "github.com" and path.count("/") != 1 else Repository(host, path)


def repository(root: Path) -> Repository | None:
    """Return the book's repository: what BOOK_REPOSITORY says, else the remote ``origin``.

    An empty BOOK_REPOSITORY means none, whatever git says.

    Raises
    ------
    ValueError
        If BOOK_REPOSITORY is no address on GitHub or GitLab.
    """
    given = os.environ.get("BOOK_REPOSITORY")
    if given is not None:
        found = parse(given)
        if given and found is None:
            raise ValueError(
                f"BOOK_REPOSITORY={given} is no repository on GitHub or GitLab: write "
                "https://github.com/OWNER/NAME"
            )
        return found
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, no clone, no remote
        return None
    return parse(said.stdout)


def site() -> str | None:
    """Return where the pages are published, with a slash at the end: what BOOK_SITE says.

    Raises
    ------
    ValueError
        If that is no address.
    """
    given = os.environ.get("BOOK_SITE")
    if not given:
        return None
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", given):
        raise ValueError(f"BOOK_SITE={given} is no address: write https://OWNER.github.io/NAME/")
    return given.rstrip("/") + "/"
