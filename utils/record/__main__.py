"""``python -m utils.record``."""

import signal
import sys

from utils.record.recorder import main

signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` ends a run as Ctrl-C does
sys.exit(main())
