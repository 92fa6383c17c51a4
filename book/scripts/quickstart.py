"""The script of chapter 0, keep/mnist.py, as its experiment runs it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keep"))

import mnist  # noqa: F401
