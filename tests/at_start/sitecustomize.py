"""Python runs this when it starts, in the tests and in what they start: it saves their time.

kernels.py puts this folder on the path of what notebooks start, `make test` on that of the tests.
"""

import gc
import sys

# jsonschema would build 38 parsers, a second of a processor, for addresses that nobody checks.
sys.modules["rfc3987_syntax"] = None

# Building the pages takes 93 s of a processor with Python's own thresholds, 76 with these.
gc.set_threshold(50_000, 20, 100)
