"""Kernels that have torch imported when they start, for a run of all notebooks.

Each notebook begins with the same imports, four seconds of a processor: here every kernel is a fork
of one process that has done them. `pytest --nbval book/NOTEBOOK.ipynb` does without: only the
tests' conftest.py asks for it, and only where there is no GPU.
"""

import os
import subprocess
import warnings
from pathlib import Path
from unittest.mock import patch

from jupyter_client.provisioning import local_provisioner
from nbval.kernel import start_new_kernel

import forks

AT_START = str(Path(__file__).with_name("at_start"))


def launch(command: list[str], **options: object) -> forks.Popen:
    """Stand in for ``jupyter_client.launcher.launch_kernel``; torchrun forks its ranks, too."""
    path = os.pathsep.join(filter(None, [AT_START, options["env"].get("PYTHONPATH")]))
    env = {**options["env"], "PYTHONPATH": path, forks.FORK: "ranks"}
    return forks.Popen(
        command, env=env, cwd=options["cwd"], stdin=subprocess.DEVNULL, start_new_session=True
    )


def start(*arguments: object, **options: object) -> object:
    """Stand in for ``nbval.kernel.start_new_kernel``; what went wrong is a warning.

    Then Jupyter's own starts. It may be that another process has just taken a port that was free
    for the kernel.
    """
    with patch.object(local_provisioner, "launch_kernel", launch):
        try:
            return start_new_kernel(*arguments, **options)
        except RuntimeError as error:
            warnings.warn(f"a kernel did not start: {error}", stacklevel=2)
    return start_new_kernel(*arguments, **options)
