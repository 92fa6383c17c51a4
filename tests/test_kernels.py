"""The kernels of a run of all notebooks come up even where a first attempt fails."""

import signal

import pytest
from nbval.kernel import CURRENT_ENV_KERNEL_NAME

import kernels


def test_a_server_that_hangs_is_replaced_and_one_that_dies_is_an_error(tmp_path, monkeypatch):
    once = "import pathlib, time\nseen = pathlib.Path(__file__ + '.seen')\n"
    once += "if not seen.exists():\n    seen.touch()\n    time.sleep(100)\n"
    (tmp_path / "hangs_once.py").write_text(once)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(kernels, "IMPORTED", ("hangs_once",))
    monkeypatch.setattr(kernels, "PATIENCE", 3)
    monkeypatch.setattr(kernels, "server", kernels.cache(kernels.server.__wrapped__))
    first, _ = kernels.server()
    with pytest.warns(UserWarning, match=r'hangs_once\.py", line 5'):
        manager, client = kernels.start(kernel_name=CURRENT_ENV_KERNEL_NAME, cwd=".")
    assert first.returncode == -signal.SIGKILL and manager.is_alive()
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    process, _ = kernels.server()
    process.kill()
    process.wait()
    monkeypatch.setattr(kernels, "IMPORTED", ("no_such_module",))
    with (
        pytest.warns(UserWarning, match="No module named 'no_such_module'"),
        pytest.raises(RuntimeError, match="No module named 'no_such_module'"),
    ):
        kernels.start(kernel_name=CURRENT_ENV_KERNEL_NAME, cwd=".")
