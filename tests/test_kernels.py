"""The kernels of a run of all notebooks come up even where a first attempt fails."""

import signal
import socket

import pytest
from jupyter_client.connect import LocalPortCache
from nbval.kernel import CURRENT_ENV_KERNEL_NAME

import kernels


@pytest.fixture
def another_server(monkeypatch):
    """A server that has imported nothing, beside that of this run's notebooks."""
    monkeypatch.setattr(kernels, "IMPORTED", ())
    monkeypatch.setattr(kernels, "server", kernels.cache(kernels.server.__wrapped__))
    yield
    process, _ = kernels.server()
    process.kill()
    process.wait()


def a_kernel_starts() -> None:
    manager, client = kernels.start(kernel_name=CURRENT_ENV_KERNEL_NAME, cwd=".")
    assert manager.is_alive()
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_server_that_hangs_is_replaced(another_server, tmp_path, monkeypatch) -> None:
    once = "import pathlib, time\nseen = pathlib.Path(__file__ + '.seen')\n"
    once += "if not seen.exists():\n    seen.touch()\n    time.sleep(100)\n"
    (tmp_path / "hangs_once.py").write_text(once)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(kernels, "IMPORTED", ("hangs_once",))
    monkeypatch.setattr(kernels, "PATIENCE", 3)
    first, _ = kernels.server()
    with pytest.warns(UserWarning, match=r'hangs_once\.py", line 5'):
        a_kernel_starts()
    assert first.returncode == -signal.SIGKILL


def test_a_server_that_dies_twice_is_an_error(another_server, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "IMPORTED", ("no_such_module",))
    with (
        pytest.warns(UserWarning, match="No module named 'no_such_module'"),
        pytest.raises(RuntimeError, match="No module named 'no_such_module'"),
    ):
        a_kernel_starts()


def test_a_kernel_whose_port_was_taken_is_started_again(another_server, monkeypatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports, find = [other.getsockname()[1]], LocalPortCache.find_available_port
        monkeypatch.setattr(
            LocalPortCache,
            "find_available_port",
            lambda cache, ip: ports.pop() if ports else find(cache, ip),
        )
        with pytest.warns(UserWarning, match="a kernel did not start: Kernel died"):
            a_kernel_starts()
    assert not ports
