"""Runs script.py of the folder at hand as a reader would, where ``utils`` cannot be imported."""

import json
import runpy
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path


class NoUtils(MetaPathFinder):
    """Stands before all other finders, so that also an installed ``utils`` is out of reach."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == "utils":
            raise ImportError("the code to keep imports utils, which only this book has", name=name)


if __name__ == "__main__":
    ours = {str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)}
    sys.path[:] = [str(Path.cwd()), *(path for path in sys.path[1:] if path not in ours)]
    sys.meta_path.insert(0, NoUtils())
    sys.argv = ["script.py"]
    try:
        runpy.run_path("script.py", run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise

    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    used = any(torch.cuda.max_memory_allocated(index) > 0 for index in devices)
    cuda = {"available": torch.cuda.is_available(), "used": used}
    Path("../cuda").write_text(json.dumps(cuda))
