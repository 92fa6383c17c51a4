"""Forks are what their commands say, and kernels come up even where there are no forks."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from nbval.kernel import CURRENT_ENV_KERNEL_NAME

import forks
import kernels

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.mark.parametrize(
    "args, status, out, err",
    [
        (["-c", "import sys; print(__name__, sys.argv, input())", "a"],
         0, "__main__ ['-c', 'a'] in\n", ""),
        (["-W", "error", "-c", "import warnings\nwarnings.warn('no')"], 1, "", "UserWarning: no\n"),
        (["-m", "json.tool"], 1, "", "Expecting value: line 1 column 1 (char 0)\n"),
        (["-c", "raise SystemExit('said')"], 1, "", "said\n"),
        (["-c", "import os; os.kill(os.getpid(), 9)"], -signal.SIGKILL, "", ""),
    ],
)  # fmt: skip
def test_a_fork_is_what_its_command_says(args, status, out, err) -> None:
    process = forks.Popen([sys.executable, *args], stdin=subprocess.PIPE, **PIPES)
    said = process.communicate("in\n", timeout=60)
    assert (process.returncode, said[0]) == (status, out) and said[1].endswith(err)
    assert bool(err) == bool(said[1]) and "forks.py" not in said[1]


def test_others_see_its_environment_and_it_ends_with_who_asked_for_it(tmp_path) -> None:
    process = forks.Popen(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(100)"],
        **{"env": {"MINE": "1"}, "cwd": tmp_path, "start_new_session": True, **PIPES},
    )
    assert process.stdout.readline() == "here\n" and process.poll() is None
    seen = psutil.Process(process.pid)
    assert os.getpgid(seen.pid) == seen.pid and seen.cwd() == str(tmp_path)
    assert seen.environ() == {"MINE": "1", forks.DOOR: forks.address()}
    process.line.close()
    psutil.wait_procs([seen], timeout=60)
    assert not seen.is_running()
    process.returncode = 0  # nobody waits for it


@pytest.mark.parametrize("listens", [True, False])
def test_a_kernel_starts_though_the_server_hangs_or_has_died(
    listens, tmp_path, monkeypatch
) -> None:
    path = str(tmp_path / "door")
    (tmp_path / "door.err").write_text("No module named 'no_such_module'")
    monkeypatch.setattr(forks, "PATIENCE", 0.3)
    monkeypatch.setattr(forks, "address", lambda: path)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        if listens:
            door.listen()
        with pytest.warns(
            UserWarning, match=r"did not start: .*\nNo module named 'no_such_module'"
        ):
            manager, client = kernels.start(kernel_name=CURRENT_ENV_KERNEL_NAME, cwd=".")
    assert manager.is_alive()
    client.stop_channels()
    manager.shutdown_kernel(now=True)
