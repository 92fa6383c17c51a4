"""Tables of cases that read better as data than as code: cases.yml holds them by their test."""

import functools
from pathlib import Path

import yaml


@functools.cache
def _all() -> dict:
    return yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))


def cases(test: str) -> list | dict:
    """The cases of the test of this name."""
    return _all()[test]
