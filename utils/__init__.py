"""The small package that the notebooks of *PyTorch on CUDA, Measured* share: what is where.

To measure: ``timing`` (stopwatches), ``memory`` (bytes, peaks), ``gpt2_step`` (one weighed step).
To run: ``models`` and ``data``; ``device`` (the GPU at hand) and ``gpus`` (datasheets of others);
``cost`` (formulas for many GPUs).
To show: ``plotting`` (figures, tables) and ``cards`` (predictions, the box "In short").
``record``: experiments, live or replayed, and their records; ``python -m utils.record`` makes them.
``profile``: traces of the profiler, read and drawn. ``bounds``: what holds a profiled step back.
``diagnosis``: why PyTorch does not see a GPU. ``ranks``: scripts on several processes.
"""

import os

# Kineto, the library under torch.profiler, would write notes of its own to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
