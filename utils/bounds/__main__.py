"""``python -m utils.bounds TRACE``."""

import gc
import sys

from utils.bounds.command import main

gc.disable()  # the process ends soon, and looking for garbage among a million spans takes seconds
sys.exit(main())
