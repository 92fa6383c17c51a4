"""``python -m utils.bounds TRACE``."""

import gc
import sys
from io import TextIOWrapper

from utils.bounds.command import main

gc.disable()  # the process ends soon, and looking for garbage among a million spans takes seconds
if isinstance(sys.stdout, TextIOWrapper):  # a terminal or a pipe that may not know the µ
    encoding = "utf-8" if "--json" in sys.argv else None
    sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
sys.exit(main())
