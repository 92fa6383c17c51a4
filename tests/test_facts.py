"""What a machine says, faked at its edges; and the command on such machines."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from machines import H100, HEALTHY, V100
from utils import device
from utils.diagnosis import Facts, facts, gather, runs_on, what_is_wrong
from utils.record import ROOT

KNOWN = {"wheel": torch.__version__, "wheel_cuda": "13.0", "wheel_archs": HEALTHY.wheel_archs}
BARE = Facts(**KNOWN, torch_error="no GPU")
VERSION, KERNEL = "proc/driver/nvidia/version", "proc/sys/kernel/osrelease"
LOADED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 2024\n"


def card(vendor: str = "0x10de", kind: str = "0x030200", slot: int = 1) -> dict[str, str]:
    """The files of a card on the PCI bus."""
    folder = f"sys/bus/pci/devices/0000:0{slot}:00.0"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/class": f"{kind}\n"}


def smi(answer: str, status: int = 0, knows_capability: bool = True) -> str:
    """A script in the place of nvidia-smi."""
    refuse = "" if knows_capability else 'case "$*" in *compute_cap*) exit 2;; esac\n'
    return f"#!/bin/sh\n{refuse}echo '{answer}'\nexit {status}\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A bare machine: no driver, no GPU, an empty root. Gives a function that adds to it."""
    tools, root = tmp_path / "bin", tmp_path / "root"
    tools.mkdir()
    root.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    for name in ("CUDA_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(facts, "newest_cuda", lambda: None)
    monkeypatch.setattr(facts, "_torch_gpus", lambda torch: ((), "no GPU"))
    monkeypatch.setattr(facts, "wheel_archs", lambda: HEALTHY.wheel_archs)
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    def add(files: dict[str, str | None], nvidia_smi: str | bytes | None = None) -> Path:
        """Write files (None: a folder of that name) and nvidia-smi; return the root."""
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).mkdir() if text is None else (root / name).write_text(text)
        if nvidia_smi is not None:
            put(tools, nvidia_smi)
        return root

    return add


def put(folder: Path, script: str | bytes) -> None:
    """Put ``script`` into ``folder`` as nvidia-smi."""
    tool = folder / "nvidia-smi"
    tool.write_bytes(script if isinstance(script, bytes) else script.encode())
    tool.chmod(0o755)


# Files of the system, nvidia-smi; what is found beyond a bare machine, and what is wrong.
FAILED = "NVIDIA-SMI has failed because it could not communicate"
MACHINES = [  # the second: an AMD card, and the sound device of one of NVIDIA
    ({}, None, {}, "no-gpu"),
    ({**card("0x1002"), **card(kind="0x040300", slot=2)}, None, {}, "no-gpu"),
    ({**card(), **card(kind="0x030000", slot=2)}, None, {"pci_gpus": 2}, "no-driver"),
    ({**card(), ".dockerenv": "", VERSION: LOADED}, None,
     {"pci_gpus": 1, "container": True, "kernel_driver": "535.183.01"}, "container"),
    ({"run/.containerenv": ""}, None, {"container": True}, "no-gpu"),
    ({KERNEL: "5.15.153.1-Microsoft-standard-WSL2\n"}, None, {"wsl": True}, "no-gpu"),
    # files that cannot be read say nothing
    ({"sys/bus/pci/devices/0/class": "0x030000", VERSION: None, KERNEL: None}, None, {}, "no-gpu"),
    # nvidia-smi that fails, complains, or does not start
    *[({}, smi(said, status=9), {"smi_error": said or "exit status 9"}, cause)
      for said, cause in {"NVML: Driver/library version mismatch": "driver-mismatch",
                          "No devices were found": "no-device",
                          FAILED: "driver-not-running", "": "driver-not-running"}.items()],
    ({}, "#!/bin/sh\necho broken >&2\necho indeed >&2\nexit 1\n", {"smi_error": "broken"},
     "driver-not-running"),
    ({}, "\0", {"smi_error": "it did not run (OSError)"}, "driver-not-running"),
    # nvidia-smi that works
    ({}, smi("580.65.06, NVIDIA H100 80GB HBM3, 9.0"),
     {"driver_version": "580.65.06", "driver_gpus": (H100,)}, "unknown"),
    ({}, smi("450.80.02, Tesla T4", knows_capability=False),
     {"driver_version": "450.80.02", "driver_gpus": (("Tesla T4", None),)}, "unknown"),
    ({}, smi("a remark\n580.65.06, NVIDIA H100 80GB HBM3, 9.0\n580.65.06, A card, [N/A]"),
     {"driver_version": "580.65.06", "driver_gpus": (H100, ("A card", None))}, "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("files, script, found, cause", MACHINES)
def test_what_a_machine_says(machine, files, script, found, cause) -> None:
    said = gather(machine(files, script))
    assert said == replace(BARE, **found)
    assert [finding.cause for finding in what_is_wrong(said)] == [cause]


def test_what_the_environment_and_the_driver_say(machine, monkeypatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(facts, "newest_cuda", lambda: (12, 2))
    monkeypatch.setattr(facts, "_torch_gpus", lambda torch: ((V100,), None))
    found = {"container": True, "visible_devices": "3", "driver_cuda": (12, 2)}
    assert gather(machine({})) == replace(BARE, **found, torch_gpus=(V100,), torch_error=None)


# --- torch that works, or not ------------------------------------------------------------------


def test_wheel_archs_need_no_gpu() -> None:
    archs = facts.wheel_archs()
    assert bool(archs) == (torch.version.cuda is not None)
    assert all(runs_on(arch, (99, 9)) in (True, False) for arch in archs)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (None, ((V100,), None)),
        (AssertionError("Torch not compiled with CUDA"), ((), "Torch not compiled with CUDA")),
        (RuntimeError("driver too old\nfind another"), ((), "driver too old")),
        (RuntimeError(), ((), "RuntimeError")),
        (torch.cuda.DeferredCudaCallError("a check failed"), ((), "a check failed")),
    ],
)
def test_what_torch_says_of_its_gpus(error, found, recwarn) -> None:
    def init() -> None:
        warnings.warn("noise", stacklevel=2)
        if error:
            raise error

    gpu = SimpleNamespace(name=V100[0], major=7, minor=0)
    answers = {"device_count": lambda: 1, "get_device_properties": lambda index: gpu}
    assert facts._torch_gpus(SimpleNamespace(cuda=SimpleNamespace(init=init, **answers))) == found
    assert not recwarn


def run(*options: str, **changes: str) -> subprocess.CompletedProcess:
    """Run the command in a fresh Python, with changes to its environment."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    command = [sys.executable, *options[:1], "-m", "utils.diagnosis", *options[1:]]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform != "linux", reason="a libcuda.so.1 is built")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build it with")
@pytest.mark.skipif(torch.version.cuda is None, reason="a wheel without CUDA asks no driver")
def test_command_finds_an_old_driver_and_hidden_gpus(tmp_path) -> None:
    """End to end on any machine: a library in the place of libcuda says that it is of 2020."""
    source, library = tmp_path / "old.c", tmp_path / "libcuda.so.1"
    source.write_text("int cuDriverGetVersion(int *v) { *v = 11040; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    put(tmp_path, smi("450.80.02, Tesla T4, 7.5"))
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(tmp_path)}
    done = run("-u", CUDA_VISIBLE_DEVICES="", **paths)
    assert "driver 450.80.02 supports CUDA up to 11.4." in done.stdout, done.stdout + done.stderr
    assert "too old (found version 11040)" in done.stdout  # torch's own words
    assert "CUDA_VISIBLE_DEVICES='' hides the only GPU" in done.stdout
    assert "Remedy:  unset CUDA_VISIBLE_DEVICES" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: update the driver")
    assert done.returncode == 1


def test_this_machine_makes_sense() -> None:
    """Whatever runs the tests: torch uses a GPU and nothing is found, or the other way round."""
    found = gather()
    assert bool(found.torch_gpus) == (device.gpu_count() > 0)
    if not found.torch_gpus:
        assert what_is_wrong(found) and found.torch_error


@pytest.mark.parametrize(
    ("name", "code", "says", "step"),
    [
        ("torch/__init__.py", "import ctypes; ctypes.CDLL('libc.so.9')",
         "OSError: libc.so.9: cannot open shared object file", "pip install --force-reinstall"),
        ("torch.py", "x = 1", "module 'torch' has no attribute '__version__'", "rename"),
        ("torch/notes.txt", "", "module 'torch' has no attribute '__version__'", "rename"),
        ("torch.py", "import nowhere", "No module named 'nowhere'", "rename"),
        ("site-packages/torch.py", "1 / 0", "division by zero", 'python -c "import torch"'),
    ],
)  # fmt: skip
def test_a_torch_that_cannot_be_imported_is_explained(tmp_path, name, code, says, step) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    place = file.parent.parent if file.parent.name == "torch" else file.parent
    # Without the environment's own packages: a folder called torch comes after a package.
    done = run("-S", PYTHONPATH=f"{place}{os.pathsep}{ROOT}")
    assert done.stderr == "" and done.returncode == 1
    assert "Problem: torch is installed, but importing it fails: " in done.stdout
    assert says in done.stdout and f"(from {place}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"Next: {step}")


def test_a_python_without_torch_is_told_so() -> None:
    done = run("-S", "--json")
    said = json.loads(done.stdout)
    assert said["findings"][0]["cause"] == "no-torch" and "requirements.txt" in said["next"]
    assert said["facts"]["wheel"] is None
    assert said["facts"]["import_error"] == "No module named 'torch'"
    assert (done.returncode, said["status"], done.stderr) == (1, 1, "")


# --- the driver's own tools --------------------------------------------------------------------


def test_nvidia_smi_is_asked_for_a_line_per_gpu(machine, monkeypatch) -> None:
    assert device.nvidia_smi("name") is None and device.smi_error() is None
    machine({}, '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    asked = ["--query-gpu=uuid,name", "--format=csv,noheader,nounits"]
    assert device.nvidia_smi("uuid,name") == asked and device.smi_error() is None
    machine({}, smi("GPU", status=1))
    assert device.nvidia_smi("name") is None and device.smi_error() == "GPU"
    machine({}, b"#!/bin/sh\necho '\xff\xfe'\nexit 1\n")  # in another alphabet
    assert device.smi_error()

    hang = Mock(side_effect=subprocess.TimeoutExpired("nvidia-smi", 60))
    monkeypatch.setattr(device.subprocess, "run", hang)
    assert device.nvidia_smi("name") is None
    assert device.smi_error() == "it did not run (TimeoutExpired)"


@pytest.mark.parametrize(
    ("answer", "status", "version"),
    [
        (13020, 0, (13, 2)),
        (12080, 0, (12, 8)),
        (0, 34, None),  # the stub that comes with the toolkit
        (None, 0, None),  # a library that is not the driver's
        (OSError("libcuda.so.1: cannot open shared object file"), 0, None),
    ],
)
def test_newest_cuda_of_the_driver(answer, status, version, monkeypatch) -> None:
    def ask(place) -> int:
        place._obj.value = answer
        return status

    library = SimpleNamespace(**{} if answer is None else {"cuDriverGetVersion": ask})
    found = {"side_effect": answer} if isinstance(answer, Exception) else {"return_value": library}
    load = Mock(**found)
    monkeypatch.setattr(device.ctypes, "CDLL", load)
    assert device.newest_cuda() == version
    load.assert_called_once_with("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
