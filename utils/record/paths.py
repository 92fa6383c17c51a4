"""Where things of the project are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BOOK = ROOT / "book"
RECORDS = BOOK / "records"
TRACES = BOOK / "traces"
SCRIPTS = BOOK / "scripts"
