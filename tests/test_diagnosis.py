"""Picking, describing and diagnosing, on machines that are faked from the outside in."""

import dataclasses
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from utils import device, diagnosis
from utils.diagnosis import Facts, diagnose, gather, runs_on, visible

ROOT = Path(__file__).resolve().parent.parent
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
H100 = ("NVIDIA H100 80GB HBM3", (9, 0))
V100 = ("Tesla V100-SXM2-32GB", (7, 0))
HEALTHY = Facts(
    pci_gpus=1,
    kernel_driver="580.65.06",
    driver_cuda=(13, 0),
    driver_version="580.65.06",
    driver_gpus=(H100,),
    wheel="2.11.0+cu130",
    wheel_cuda="13.0",
    wheel_archs=ARCHS,
    torch_gpus=(H100,),
)
# The same machine, but torch can use nothing: the starting point of most faults.
BLIND = replace(HEALTHY, torch_gpus=(), torch_error="no CUDA-capable device is detected")
NO_DRIVER = replace(
    BLIND, kernel_driver=None, driver_cuda=None, driver_version=None, driver_gpus=()
)


def causes(facts: Facts) -> list[str]:
    return [finding.cause for finding in diagnose(facts)]


# --- pick --------------------------------------------------------------------------------------


def test_pick_gives_a_device_that_works() -> None:
    assert torch.ones(2, device=device.pick()).sum().item() == 2
    assert device.pick("cpu") == torch.device("cpu")


@pytest.mark.parametrize("absent", ["cuda:99", "meta"])
def test_pick_refuses_what_is_not_there(absent) -> None:
    with pytest.raises(RuntimeError, match=f"{absent} was asked for, but this machine has"):
        device.pick(absent)


def test_pick_with_two_gpus(monkeypatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert device.pick() == torch.device("cuda")
    assert device.pick("cuda:1") == torch.device("cuda:1")
    with pytest.raises(RuntimeError, match="2 x cuda"):
        device.pick("cuda:2")


def test_provenance_says_what_a_record_must_say() -> None:
    from utils.experiment import PROVENANCE

    found = device.provenance()
    assert set(PROVENANCE) <= found.keys()
    assert found["torch"] == torch.__version__ and found["cpu"] and found["cpu_cores"] >= 1
    assert (found["gpu"] is None) == (found["gpu_count"] == 0)


# --- the rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "runs", "fails"),
    [
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0), (10, 0)]),
        ("sm_86", [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        ("sm_90", [(9, 0)], [(8, 9), (10, 0), (12, 0)]),
        ("sm_100", [(10, 0), (10, 3)], [(9, 0), (11, 0), (12, 0)]),
        ("sm_120", [(12, 0), (12, 1)], [(10, 0), (10, 3)]),
        ("sm_90a", [(9, 0)], [(8, 0), (10, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(9, 0), (12, 0)]),
        ("compute_75", [(7, 5), (8, 9), (12, 0)], [(7, 0)]),
        ("compute_90a", [(9, 0)], [(10, 0)]),
        ("compute_100f", [(10, 0), (10, 3)], [(12, 0)]),
    ],
)
def test_which_code_runs_where(arch, runs, fails) -> None:
    assert [c for c in runs + fails if runs_on(arch, c)] == runs


@pytest.mark.parametrize("name", ["90", "sm_9", "gfx90a", "sm_90b", "compute90"])
def test_architectures_are_checked(name) -> None:
    with pytest.raises(ValueError, match="is no architecture"):
        runs_on(name, (9, 0))


def test_rule_agrees_with_torch() -> None:
    """torch keeps a table of its own, for the warning it prints; Jetson boards apart."""
    for code in (75, 80, 86, 89, 90, 100, 103, 120, 121):
        for gpu in (75, 80, 86, 89, 90, 100, 103, 120, 121):
            ours = runs_on(f"sm_{code}", divmod(gpu, 10))
            assert ours == torch.cuda._code_compatible_with_device(gpu, code), (code, gpu)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 3", [1, 3]),
        ("+1", [1]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("4", []),
        ("1,9,2", [1]),
        ("9,1", []),
        ("0,-1,1", [0]),
        ("1,1", []),
        ("GPU-8932f937", None),
        ("MIG-8932f937", None),
    ],
)
def test_visible_devices(value, expected, monkeypatch) -> None:
    assert visible(value, 4) == expected
    # torch has a parser of its own for counting GPUs before CUDA starts.
    if expected is not None:
        monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 4)
        monkeypatch.setattr(torch.cuda, "_cached_device_count", None, raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if value is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        count = torch.cuda._device_count_nvml()
        assert count == (len(expected) if value is not None else 4)


def test_wheel_archs_need_no_gpu() -> None:
    archs = diagnosis.wheel_archs()
    assert bool(archs) == (torch.version.cuda is not None)
    assert all(runs_on(arch, (99, 9)) in (True, False) for arch in archs)


# --- diagnosis, from facts ---------------------------------------------------------------------


def test_healthy_machines_have_no_findings() -> None:
    assert diagnose(HEALTHY) == []
    # What works needs no explanation: a container without nvidia-smi, a driver older than the wheel
    # within the same CUDA major version, one GPU chosen of eight.
    assert diagnose(replace(HEALTHY, driver_gpus=(), driver_version=None)) == []
    assert diagnose(replace(HEALTHY, wheel_cuda="13.2")) == []
    assert diagnose(replace(HEALTHY, driver_gpus=(H100,) * 8, visible_devices="3")) == []
    assert diagnose(replace(HEALTHY, driver_cuda=(14, 1))) == []


@pytest.mark.parametrize(
    ("facts", "cause", "says", "remedy"),
    [
        (Facts(), "no-gpu", "no NVIDIA GPU", "lspci"),
        (Facts(wsl=True), "no-gpu", "no NVIDIA GPU", "in Windows"),
        (Facts(container=True), "no-gpu", "no NVIDIA GPU", "--gpus all"),
        (NO_DRIVER, "no-driver", "no NVIDIA driver", "ubuntu-drivers"),
        (
            replace(NO_DRIVER, container=True, kernel_driver="580.65.06"),
            "container",
            "started without GPUs",
            "--gpus all",
        ),
        (
            replace(
                BLIND,
                driver_gpus=(),
                smi_error="Failed to initialize NVML: Driver/library version mismatch",
            ),
            "driver-mismatch",
            "differ in version",
            "restart",
        ),
        (
            replace(
                BLIND,
                driver_gpus=(),
                kernel_driver=None,
                smi_error="NVIDIA-SMI has failed "
                "because it couldn't communicate with the NVIDIA driver.",
            ),
            "driver-not-running",
            "couldn't communicate",
            "modprobe",
        ),
        (
            replace(BLIND, driver_gpus=(), smi_error="Unable to determine the device handle"),
            "driver-not-running",
            "Unable to determine",
            "modprobe",
        ),
        (
            replace(BLIND, driver_gpus=(), kernel_driver=None),
            "driver-not-running",
            "not loaded",
            "modprobe",
        ),
        (
            replace(BLIND, driver_gpus=(), smi_error="No devices were found"),
            "no-device",
            "finds no GPU",
            "dmesg",
        ),
        (
            replace(BLIND, driver_gpus=(), container=True, smi_error="No devices were found"),
            "no-device",
            "finds no GPU",
            "dmesg",
        ),
        (
            replace(BLIND, wheel_cuda=None, wheel="2.11.0+cpu", wheel_archs=()),
            "cpu-wheel",
            "2.11.0+cpu was built without CUDA",
            "--index-url",
        ),
        (
            replace(BLIND, driver_cuda=(12, 2), driver_version="535.183.01"),
            "old-driver",
            "CUDA 13.0, and driver 535.183.01 supports CUDA up to 12.2",
            "branch 580 or newer; or, where you cannot, install an older release, for CUDA 12",
        ),
        (
            replace(BLIND, driver_cuda=(11, 4), wheel_cuda="12.6"),
            "old-driver",
            "CUDA up to 11.4",
            "branch 525 or newer",
        ),
        (
            replace(BLIND, driver_cuda=(10, 2), driver_version=None, wheel_cuda="11.8"),
            "old-driver",
            "driver 580.65.06 supports CUDA up to 10.2",  # the module's version will do
            "branch 450 or newer",
        ),
        (
            replace(BLIND, wheel_cuda="15.0"),
            "old-driver",
            "CUDA 15.0",
            "update the driver",  # to which branch is not known yet
        ),
        (
            replace(HEALTHY, driver_gpus=(V100,), torch_gpus=(V100,)),
            "no-kernels",
            "compute capability 7.0, and this wheel holds code for sm_75",
            "cu126",
        ),
        (
            replace(HEALTHY, torch_gpus=(("NVIDIA X", (13, 0)),)),
            "no-kernels",
            "compute capability 13.0",
            "--upgrade",
        ),
        (replace(BLIND, visible_devices=""), "hidden", "=''", "unset CUDA_VISIBLE_DEVICES"),
        (replace(BLIND, visible_devices="1"), "hidden", "hides the only GPU", "unset"),
        (
            replace(BLIND, driver_gpus=(), driver_version=None, visible_devices="-1"),
            "hidden",
            "='-1'",
            "unset",
        ),
        (
            replace(BLIND, torch_error="Error 802: system not yet initialized"),
            "unknown",
            "Error 802",
            "fabric manager",
        ),
        (replace(BLIND, visible_devices="GPU-0"), "unknown", "detected", "UUIDs"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_each_cause_is_found_alone_and_with_its_remedy(facts, cause, says, remedy) -> None:
    (finding,) = diagnose(facts)
    assert finding.cause == cause
    assert says in finding.problem
    assert remedy in finding.remedy


def test_several_causes_are_all_found() -> None:
    facts = replace(NO_DRIVER, wheel_cuda=None, wheel_archs=(), visible_devices="")
    assert causes(facts) == ["no-driver", "cpu-wheel", "hidden"]
    facts = replace(BLIND, driver_cuda=(12, 2), driver_gpus=(V100,), visible_devices="5")
    assert causes(facts) == ["old-driver", "no-kernels", "hidden"]


def test_an_old_card_beside_a_new_one_is_named() -> None:
    (finding,) = diagnose(replace(HEALTHY, torch_gpus=(H100, V100)))
    assert finding.problem.startswith("Tesla V100")
    assert diagnose(replace(HEALTHY, torch_gpus=(V100,), wheel_archs=("compute_70",))) == []


def test_a_card_in_a_gap_between_architectures_needs_a_newer_wheel() -> None:
    (finding,) = diagnose(replace(HEALTHY, wheel_archs=("sm_80", "sm_120")))
    assert finding.cause == "no-kernels" and "--upgrade" in finding.remedy


def test_a_wheel_that_does_not_name_its_architectures_is_not_blamed() -> None:
    assert diagnose(replace(HEALTHY, wheel_archs=())) == []


@pytest.mark.parametrize(
    "sign", [{"pci_gpus": 1}, {"kernel_driver": "580.65.06"}, {"smi_error": "No devices"}]
)
def test_one_sign_of_a_gpu_is_enough_to_look_further(sign) -> None:
    assert "no-gpu" not in causes(replace(Facts(), **sign))


@pytest.mark.parametrize(
    "facts, count",
    [
        (replace(BLIND, driver_gpus=(H100,) * 2), "all 2 GPUs"),
        (replace(BLIND, driver_gpus=(H100,) * 8), "all 8 GPUs"),
        (replace(BLIND, driver_gpus=(), pci_gpus=4), "all 4 GPUs"),
        (replace(BLIND, driver_gpus=(), pci_gpus=0), "the only GPU"),
    ],
)
def test_hidden_gpus_are_counted(facts, count) -> None:
    (finding,) = diagnose(replace(facts, visible_devices="-1"))
    assert finding.cause == "hidden" and f"hides {count}" in finding.problem


# --- gathering, from a machine faked at its edges ----------------------------------------------


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A bare machine: no driver, no GPU, an empty root. Returns functions that add parts to it."""
    tools, root = tmp_path / "bin", tmp_path / "root"
    tools.mkdir()
    root.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(diagnosis, "_driver_cuda", lambda: None)
    monkeypatch.setattr(diagnosis, "_torch_gpus", lambda: ((), "no GPU"))
    monkeypatch.setattr(diagnosis, "wheel_archs", lambda: ARCHS)
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
    assert facts == Facts(wheel_cuda="13.0", wheel_archs=ARCHS, torch_error="no GPU")
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
    [("#!/bin/sh\necho broken >&2\nexit 1\n", "broken"), ("\0", "it did not run (OSError)")],
)
def test_nvidia_smi_that_complains_or_does_not_start(machine, script, said) -> None:
    (machine.bin / "nvidia-smi").write_text(script)
    (machine.bin / "nvidia-smi").chmod(0o755)
    assert gather(machine.path).smi_error == said


def test_cpu_only_wheel(machine, monkeypatch) -> None:
    machine.card()
    machine.smi("580.65.06, NVIDIA H100 80GB HBM3, 9.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(diagnosis, "_driver_cuda", lambda: (13, 0))
    facts = gather(machine.path)
    assert facts.driver_gpus == (H100,) and facts.driver_version == "580.65.06"
    assert causes(facts) == ["cpu-wheel"]


def test_old_driver_that_does_not_know_compute_capabilities(machine, monkeypatch) -> None:
    machine.smi("450.80.02, Tesla T4", knows_capability=False)
    monkeypatch.setattr(diagnosis, "_driver_cuda", lambda: (11, 0))
    facts = gather(machine.path)
    assert facts.driver_gpus == (("Tesla T4", None),)
    assert causes(facts) == ["old-driver"]


def test_a_card_that_the_wheel_has_no_code_for(machine, monkeypatch) -> None:
    machine.smi("580.65.06, Tesla V100-SXM2-32GB, 7.0")
    monkeypatch.setattr(diagnosis, "_driver_cuda", lambda: (13, 0))
    monkeypatch.setattr(diagnosis, "_torch_gpus", lambda: ((V100,), None))
    assert causes(gather(machine.path)) == ["no-kernels"]


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
    done = run("-m", "utils.diagnosis", PATH=path, CUDA_VISIBLE_DEVICES="")
    assert "CUDA_VISIBLE_DEVICES='' hides the only GPU" in done.stdout, done.stdout + done.stderr
    assert "Remedy:  unset CUDA_VISIBLE_DEVICES" in done.stdout
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
    done = run("-m", "utils.diagnosis", PATH=path, LD_LIBRARY_PATH=str(tmp_path))
    assert "driver 450.80.02 supports CUDA up to 11.4." in done.stdout, done.stdout + done.stderr
    assert "too old (found version 11040)" in done.stdout  # torch's own words
    assert done.returncode == 1


def test_command_explains_itself(capsys) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        diagnosis.main(["--help"])
    assert "Exit status" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^2$"):
        diagnosis.main(["--nonsense"])


@pytest.mark.parametrize(
    ("facts", "status"), [(Facts(), 0), (HEALTHY, 0), (NO_DRIVER, 1), (BLIND, 1)]
)
def test_exit_status(facts, status, monkeypatch, capsys) -> None:
    monkeypatch.setattr(diagnosis, "gather", lambda: facts)
    assert diagnosis.main([]) == status
    said = capsys.readouterr().out
    assert all(field.name in said for field in dataclasses.fields(Facts))
    assert ("Nothing to repair" in said) == (facts is HEALTHY)


def test_this_machine_makes_sense() -> None:
    """Whatever runs the tests: torch uses a GPU and nothing is found, or the other way round."""
    facts = gather()
    assert bool(facts.torch_gpus) == (device.gpu_count() > 0)
    if not facts.torch_gpus:
        assert diagnose(facts) and facts.torch_error


@pytest.mark.parametrize(
    "blackwell", [("NVIDIA B200", (10, 0)), ("NVIDIA GeForce RTX 5090", (12, 0))]
)
def test_no_older_wheel_is_advised_for_a_card_that_it_has_no_code_for(blackwell) -> None:
    old = replace(BLIND, driver_cuda=(12, 8), driver_version="570.86.15")
    assert "cu126" in diagnose(old)[0].remedy
    for gpus in [(blackwell,), (H100, blackwell)]:
        assert "cu126" not in diagnose(replace(old, driver_gpus=gpus))[0].remedy


def test_no_older_wheel_is_advised_where_the_driver_is_too_old_for_it_as_well() -> None:
    assert "cu126" not in diagnose(replace(BLIND, driver_cuda=(11, 4)))[0].remedy
