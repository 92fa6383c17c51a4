"""What a machine says, faked at its edges; and the command on such machines."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from machines import ARCHS, H100, V100
from utils import device
from utils.diagnosis import Facts, gather, runs_on, what_is_wrong
from utils.diagnosis import facts as module

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ("-m", "utils.diagnosis")


def causes(facts: Facts) -> list[str]:
    return [finding.cause for finding in what_is_wrong(facts)]


def test_wheel_archs_need_no_gpu() -> None:
    archs = module.wheel_archs()
    assert bool(archs) == (torch.version.cuda is not None)
    assert all(runs_on(arch, (99, 9)) in (True, False) for arch in archs)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A bare machine: no driver, no GPU, an empty root. Returns functions that add parts to it."""
    tools, root = tmp_path / "bin", tmp_path / "root"
    tools.mkdir()
    root.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(module, "newest_cuda", lambda: None)
    monkeypatch.setattr(module, "_torch_gpus", lambda torch: ((), "no GPU"))
    monkeypatch.setattr(module, "wheel_archs", lambda: ARCHS)
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    class Machine:
        path = root
        bin = tools

        @staticmethod
        def file(name: str, text: str) -> None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

        @staticmethod
        def card(
            vendor: str = "0x10de", kind: str = "0x030200", slot: str = "0000:01:00.0"
        ) -> None:
            Machine.file(f"sys/bus/pci/devices/{slot}/vendor", vendor + "\n")
            Machine.file(f"sys/bus/pci/devices/{slot}/class", kind + "\n")

        @staticmethod
        def smi(answer: str, status: int = 0, knows_capability: bool = True) -> None:
            fake_smi(tools, answer, status, knows_capability)

    return Machine


def fake_smi(folder: Path, answer: str, status: int = 0, knows_capability: bool = True) -> None:
    """Put a script in the place of nvidia-smi."""
    refuse = "" if knows_capability else 'case "$*" in *compute_cap*) exit 2;; esac\n'
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{refuse}echo '{answer}'\nexit {status}\n")
    script.chmod(0o755)


def test_a_machine_without_gpu(machine) -> None:
    machine.card(vendor="0x1002")  # another maker's
    machine.card(kind="0x040300", slot="0000:01:00.1")  # the sound device of an NVIDIA card
    facts = gather(machine.path)
    assert facts == Facts(
        wheel=torch.__version__, wheel_cuda="13.0", wheel_archs=ARCHS, torch_error="no GPU"
    )
    assert causes(facts) == ["no-gpu"]


def test_a_card_without_driver(machine) -> None:
    machine.card()
    machine.card(kind="0x030000", slot="0000:02:00.0")
    facts = gather(machine.path)
    assert facts.pci_gpus == 2
    assert causes(facts) == ["no-driver"]


def test_a_container_that_was_given_no_gpu(machine) -> None:
    machine.card()
    machine.file(".dockerenv", "")
    machine.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
                 "535.183.01  Sun May 12 19:39:15 UTC 2024\n")  # fmt: skip
    facts = gather(machine.path)
    assert facts.container and facts.kernel_driver == "535.183.01"
    assert causes(facts) == ["container"]


def test_every_mark_of_a_container_is_enough(machine, monkeypatch) -> None:
    assert not gather(machine.path).container
    for mark in (".dockerenv", "run/.containerenv"):
        machine.file(mark, "")
        assert gather(machine.path).container
        (machine.path / mark).unlink()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert gather(machine.path).container


@pytest.mark.parametrize("kernel", ["5.15.153.1-microsoft-standard-WSL2", "4.4.0-19041-Microsoft"])
def test_wsl_is_recognized(machine, kernel) -> None:
    machine.file("proc/sys/kernel/osrelease", f"{kernel}\n")
    assert gather(machine.path).wsl


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-mismatch"),
        ("No devices were found", "no-device"),
        ("NVIDIA-SMI has failed because it could not communicate", "driver-not-running"),
        ("", "driver-not-running"),
    ],
)
def test_nvidia_smi_that_fails(machine, said, cause) -> None:
    machine.card()
    machine.smi(said, status=9)
    facts = gather(machine.path)
    assert facts.smi_error == (said or "exit status 9") and facts.driver_gpus == ()
    assert causes(facts) == [cause]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho broken >&2\necho indeed >&2\nexit 1\n", "broken"),
        ("\0", "it did not run (OSError)"),
    ],
)
def test_nvidia_smi_that_complains_or_does_not_start(machine, script, said) -> None:
    (machine.bin / "nvidia-smi").write_text(script)
    (machine.bin / "nvidia-smi").chmod(0o755)
    assert gather(machine.path).smi_error == said


def test_cpu_only_wheel(machine, monkeypatch) -> None:
    machine.card()
    machine.smi("580.65.06, NVIDIA H100 80GB HBM3, 9.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(module, "newest_cuda", lambda: (13, 0))
    facts = gather(machine.path)
    assert facts.driver_gpus == (H100,) and facts.driver_version == "580.65.06"
    assert causes(facts) == ["cpu-wheel"]


def test_old_driver_that_does_not_know_compute_capabilities(machine, monkeypatch) -> None:
    machine.smi("450.80.02, Tesla T4", knows_capability=False)
    monkeypatch.setattr(module, "newest_cuda", lambda: (11, 0))
    facts = gather(machine.path)
    assert facts.driver_gpus == (("Tesla T4", None),)
    assert causes(facts) == ["old-driver"]


def test_a_card_that_the_wheel_has_no_code_for(machine, monkeypatch) -> None:
    machine.smi("580.65.06, Tesla V100-SXM2-32GB, 7.0")
    monkeypatch.setattr(module, "newest_cuda", lambda: (13, 0))
    monkeypatch.setattr(module, "_torch_gpus", lambda torch: ((V100,), None))
    assert causes(gather(machine.path)) == ["no-kernels"]


def test_only_a_driver_that_does_not_know_compute_capabilities_is_asked_twice(monkeypatch) -> None:
    answers = {"driver_version,name,compute_cap": ["580.65.06, Tesla T4, 7.5"]}
    monkeypatch.setattr(module, "nvidia_smi", answers.get)
    monkeypatch.setattr(module, "smi_error", lambda: "not asked where there are GPUs")
    facts = gather(Path("/nowhere"))
    assert facts.driver_gpus == (("Tesla T4", (7, 5)),) and facts.smi_error is None
    answers |= {"driver_version,name": ["450.80.02, Tesla T4"]}
    assert gather(Path("/nowhere")).driver_version == "580.65.06"
    answers.pop("driver_version,name,compute_cap")
    assert gather(Path("/nowhere")).driver_version == "450.80.02"


def test_a_remark_of_nvidia_smi_is_no_gpu(machine) -> None:
    machine.smi("a remark\n580.65.06, NVIDIA H100 80GB HBM3, 9.0\n580.65.06, A card, [N/A]")
    assert gather(machine.path).driver_gpus == (H100, ("A card", None))


def test_files_that_cannot_be_read_are_files_that_say_nothing(machine) -> None:
    machine.file("sys/bus/pci/devices/0000:01:00.0/class", "0x030000")  # and no vendor
    for name in ("proc/driver/nvidia/version", "proc/sys/kernel/osrelease"):
        (machine.path / name).mkdir(parents=True)
    facts = gather(machine.path)
    assert (facts.pci_gpus, facts.kernel_driver, facts.wsl) == (0, None, False)


# --- torch that works, or not ------------------------------------------------------------------


class Cuda:
    """torch.cuda with one GPU, or with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def init(self) -> None:
        warnings.warn("noise", stacklevel=2)
        if self.error:
            raise self.error

    def device_count(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name=V100[0], major=7, minor=0)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (None, ((V100,), None)),
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            ((), "Torch not compiled with CUDA enabled"),
        ),
        (RuntimeError("driver too old\nfind another"), ((), "driver too old")),
        (RuntimeError(), ((), "RuntimeError")),
        (torch.cuda.DeferredCudaCallError("a check failed"), ((), "a check failed")),
    ],
)
def test_what_torch_says_of_its_gpus(error, found, recwarn) -> None:
    assert module._torch_gpus(SimpleNamespace(cuda=Cuda(error))) == found
    assert not recwarn


def run(*code: str, **changes: str) -> subprocess.CompletedProcess:
    """Run a fresh Python in the project's root with changes to its environment."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return subprocess.run(
        [sys.executable, *code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_command_finds_hidden_gpus(tmp_path) -> None:
    """End to end on any machine: the driver lists a GPU, the variable hides it."""
    if torch.version.cuda is None:
        pytest.skip("a wheel without CUDA has another finding")
    fake_smi(tmp_path, "580.65.06, NVIDIA H100 80GB HBM3, 9.0")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run(*COMMAND, PATH=path, CUDA_VISIBLE_DEVICES="")
    assert "CUDA_VISIBLE_DEVICES='' hides the only GPU" in done.stdout, done.stdout + done.stderr
    assert "Remedy:  unset CUDA_VISIBLE_DEVICES" in done.stdout
    assert done.stdout.splitlines()[-1] == "Next: unset CUDA_VISIBLE_DEVICES"
    assert done.returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="a libcuda.so.1 is built")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build it with")
@pytest.mark.skipif(torch.version.cuda is None, reason="a wheel without CUDA asks no driver")
def test_command_finds_an_old_driver(tmp_path) -> None:
    """End to end: a library in the place of libcuda says that it is a driver of 2020."""
    source = tmp_path / "old.c"
    source.write_text("int cuDriverGetVersion(int *v) { *v = 11040; return 0; }\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    fake_smi(tmp_path, "450.80.02, Tesla T4, 7.5")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run(*COMMAND, PATH=path, LD_LIBRARY_PATH=str(tmp_path))
    assert "driver 450.80.02 supports CUDA up to 11.4." in done.stdout, done.stdout + done.stderr
    assert "too old (found version 11040)" in done.stdout  # torch's own words
    assert done.returncode == 1


def test_this_machine_makes_sense() -> None:
    """Whatever runs the tests: torch uses a GPU and nothing is found, or the other way round."""
    facts = gather()
    assert bool(facts.torch_gpus) == (device.gpu_count() > 0)
    if not facts.torch_gpus:
        assert what_is_wrong(facts) and facts.torch_error


@pytest.mark.parametrize(
    ("name", "code", "says", "step"),
    [
        (
            "torch/__init__.py",
            "import ctypes; ctypes.CDLL('libcublas.so.99')",
            "OSError: libcublas.so.99: cannot open shared object file",
            "pip install --force-reinstall torch torchvision",
        ),
        ("torch.py", "x = 1", "module 'torch' has no attribute '__version__'", "rename"),
        ("torch/notes.txt", "", "module 'torch' has no attribute '__version__'", "rename"),
        ("torch.py", "raise RuntimeError", "RuntimeError: RuntimeError", "rename"),
        ("torch.py", "import nowhere", "No module named 'nowhere'", "rename"),
        ("site-packages/torch.py", "1 / 0", "division by zero", 'python -c "import torch"'),
    ],
)
def test_a_torch_that_cannot_be_imported_is_explained(tmp_path, name, code, says, step) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    place = file.parent.parent if file.parent.name == "torch" else file.parent
    # Without the environment's own packages: a folder called torch comes after a package.
    path = f"{place}{os.pathsep}{ROOT}"
    done = run("-S", *COMMAND, PYTHONPATH=path)
    assert done.stderr == "" and done.returncode == 1
    assert "Problem: torch is installed, but importing it fails: " in done.stdout
    assert says in done.stdout and f"(from {place}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"Next: {step}")


def test_a_python_without_torch_is_told_so() -> None:
    done = run("-S", *COMMAND, "--json")
    said = json.loads(done.stdout)
    assert said["findings"][0]["cause"] == "no-torch" and "requirements.txt" in said["next"]
    assert said["facts"]["wheel"] is None
    assert said["facts"]["import_error"] == "No module named 'torch'"
    assert (done.returncode, said["status"], done.stderr) == (1, 1, "")


# --- the driver's own tools --------------------------------------------------------------------


def test_nvidia_smi_is_asked_for_a_line_per_gpu(machine) -> None:
    assert device.nvidia_smi("name") is None and device.smi_error() is None
    script = machine.bin / "nvidia-smi"
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script.chmod(0o755)
    assert device.nvidia_smi("uuid,name") == [
        "--query-gpu=uuid,name",
        "--format=csv,noheader,nounits",
    ]
    assert device.smi_error() is None
    script.write_text("#!/bin/sh\necho GPU\nexit 1\n")
    assert device.nvidia_smi("name") is None and device.smi_error() == "GPU"


def test_nvidia_smi_that_hangs_or_answers_in_another_alphabet(machine, monkeypatch) -> None:
    machine.smi("x")

    def hang(*anything, **more):
        raise subprocess.TimeoutExpired("nvidia-smi", 60)

    with monkeypatch.context() as patched:
        patched.setattr(device.subprocess, "run", hang)
        assert device.nvidia_smi("name") is None
        assert device.smi_error() == "it did not run (TimeoutExpired)"
    script = machine.bin / "nvidia-smi"
    script.write_bytes(b"#!/bin/sh\necho '\xff\xfe'\nexit 1\n")
    assert device.smi_error()


class Library:
    """libcuda with one function."""

    def __init__(self, version: int, status: int = 0) -> None:
        self.version, self.status = version, status

    def cuDriverGetVersion(self, place) -> int:
        place._obj.value = self.version
        return self.status


@pytest.mark.parametrize(
    ("library", "version"),
    [
        (Library(13020), (13, 2)),
        (Library(12080), (12, 8)),
        (Library(11040), (11, 4)),
        (Library(14000), (14, 0)),
        (Library(12990), (12, 99)),
        (Library(0, status=34), None),  # the stub that comes with the toolkit
        (object(), None),
        (OSError("libcuda.so.1: cannot open shared object file"), None),
    ],
)
def test_newest_cuda_of_the_driver(library, version, monkeypatch) -> None:
    def load(name: str):
        assert name == ("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr(device.ctypes, "CDLL", load)
    assert device.newest_cuda() == version
