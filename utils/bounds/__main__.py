"""``python -m utils.bounds TRACE``."""

import sys

from utils.bounds.command import main

sys.exit(main())
