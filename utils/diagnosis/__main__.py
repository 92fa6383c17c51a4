"""``python -m utils.diagnosis``."""

import sys

from utils.diagnosis.command import main

if __name__ == "__main__":
    sys.exit(main())
