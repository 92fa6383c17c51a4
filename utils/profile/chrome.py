"""Read a Chrome trace's JSON, event by event, so that a large file needs little memory.

A profile of 100 MB becomes a gigabyte of dictionaries if it is parsed as a whole. Here each event
is parsed on its own and can be dropped at once.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.profile.model import TraceError

_SPACE = re.compile(r"[ \t\n\r]*")
# Kineto does not escape every control character, so that they are allowed in strings.
_decode = json.JSONDecoder(strict=False)


def read_text(path: Path) -> str:
    """Return the text of a file, compressed or not.

    Raises
    ------
    TraceError
        If it cannot be read or is cut off; the message names the file.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        # Names that are not UTF-8 occur, and cost no more than a letter. A binary file is no JSON.
        return data.decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise TraceError(f"{path.name}: no such trace") from None
    except IsADirectoryError:
        raise TraceError(f"{path.name} is a folder; name the trace in it") from None
    except PermissionError:
        raise TraceError(f"{path.name}: not allowed to read it") from None
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path.name} is not a complete trace: {error}") from None


def read(path: Path) -> dict[str, Any]:
    """Return a trace's document as a whole, as :func:`utils.profile.save` changes it.

    Raises
    ------
    TraceError
        As :class:`Document` does.
    """
    document = Document(path)
    events = list(document.events())
    return {**document.facts, "traceEvents": events}


class Document:
    """A Chrome trace: its ``events()``, one after the other, then its other ``facts``.

    Parameters
    ----------
    path : Path
        A JSON object with a list ``traceEvents``, or only such a list, as PyTorch 1.8 wrote it.

    Raises
    ------
    TraceError
        If it is not; the message names the file and the place.
    """

    def __init__(self, path: Path):
        self.name, self.facts = path.name, {}
        self.text = read_text(path)

    def events(self) -> Iterator[Any]:
        """Return the events; afterwards ``facts`` holds all that stands beside them."""
        start = _SPACE.match(self.text).end()
        first = self.text[start : start + 1]
        if not first:
            raise TraceError(f"{self.name} is empty")
        if first == "[":
            at = yield from self._list(start)
        elif first == "{":
            at = yield from self._object(start)
        else:
            raise self._broken(start, "it begins with neither { nor [")
        if _SPACE.match(self.text, at).end() < len(self.text):
            raise self._broken(at, "something follows its end")
        self.text = ""

    def _object(self, at: int) -> Iterator[Any]:
        """The events of the list ``traceEvents`` of the object at ``at``; returns its end."""
        found = False
        at, end = self._next(at + 1, "}")
        while not end:
            key, at = self._value(at)
            at = _SPACE.match(self.text, at).end()
            if not isinstance(key, str) or self.text[at : at + 1] != ":":
                raise self._broken(at, "a key and a colon should stand here")
            at = _SPACE.match(self.text, at + 1).end()
            if key == "traceEvents" and self.text[at : at + 1] == "[":
                found = True
                at = yield from self._list(at)
            else:
                self.facts[key], at = self._value(at)
            at, end = self._next(at, "}", comma=True)
        if not found:
            raise TraceError(f"{self.name} is not a Chrome trace: it has no list of traceEvents")
        return at

    def _list(self, at: int) -> Iterator[Any]:
        at, end = self._next(at + 1, "]")
        while not end:
            value, at = self._value(at)
            yield value
            at, end = self._next(at, "]", comma=True)
        return at

    def _next(self, at: int, close: str, comma: bool = False) -> tuple[int, bool]:
        """Where the next item begins and False; or what follows ``close``, and True."""
        text = self.text
        at = _SPACE.match(text, at).end()
        mark = text[at : at + 1]
        if mark == close:
            return at + 1, True
        if not comma:
            return at, False
        if mark != ",":
            raise self._broken(at, f"a comma or {close} should stand here")
        return _SPACE.match(text, at + 1).end(), False

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            return _decode.scan_once(self.text, at)
        except StopIteration as stopped:
            raise self._broken(stopped.value, "a value should stand here") from None
        except json.JSONDecodeError as error:
            raise self._broken(error.pos, error.msg) from None
        except RecursionError:
            raise self._broken(at, "its lists are nested too deeply") from None
        except ValueError as error:  # an integer of thousands of digits
            raise self._broken(at, str(error).split(";")[0]) from None

    def _broken(self, at: int, why: str) -> TraceError:
        cut = at >= len(self.text) or why.startswith("Unterminated")
        return TraceError(
            f"{self.name} is not a complete trace: it {'is cut off' if cut else 'is no JSON'} at "
            f"character {at:,}: {why.removesuffix(' starting at')}"
        )
