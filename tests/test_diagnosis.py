"""What is wrong, and what to do next, from facts that are made up; and the command that says it."""

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from machines import BLIND, H100, HEALTHY, NO_DRIVER, V100
from utils.diagnosis import Facts, rules, what_is_wrong
from utils.diagnosis import __main__ as command

TORCH = "pip install --force-reinstall torch torchvision"
REINSTALL = f"{TORCH} --index-url https://download.pytorch.org/whl"
UPGRADE = "pip install --upgrade torch torchvision"
B200, B300 = ("NVIDIA B200", (10, 0)), ("NVIDIA B300", (10, 3))
RTX_5090, GB10 = ("NVIDIA GeForce RTX 5090", (12, 0)), ("NVIDIA GB10", (12, 1))
T4, ORIN = ("Tesla T4", None), ("Orin", (8, 7))  # of the first the driver tells no capability
OLDER = replace(BLIND, driver_cuda=(12, 8), driver_version="570.86.15")
CPU_WHEEL = replace(BLIND, wheel_cuda=None, wheel="2.11.0+cpu", wheel_archs=())
UNREAD = {"wheel": None, "wheel_cuda": None, "wheel_archs": ()}
LIBRARY = "OSError: libcudart.so.13: cannot open (from /env/site-packages/torch/a.py)"


def causes(facts: Facts) -> list[str]:
    return [finding.cause for finding in what_is_wrong(facts)]


def x(*capability: int) -> tuple:
    return ("NVIDIA X", capability)


# What works needs no explanation.
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"driver_gpus": (), "driver_version": None},  # a container without nvidia-smi
        {"wheel_cuda": "13.2"},  # newer than the driver, within the same major version
        {"driver_gpus": (H100,) * 8, "visible_devices": "3"},
        {"driver_cuda": (14, 1)},
        {"torch_gpus": (V100,), "wheel_archs": ("compute_70",)},
        {"wheel_archs": ()},  # does not name its architectures
        {"wheel_archs": ("sm_80", "sm_90x")},  # one of a kind that we do not know
        {"torch_gpus": (B200, B300, RTX_5090, H100)},  # those that today's wheels know
        {"torch_gpus": (x(9, 0),), "wheel_archs": ("sm_90a", "sm_100")},
        {"torch_gpus": (x(8, 9),), "wheel_archs": ("sm_89a", "sm_90")},
        {"torch_gpus": (ORIN,), "wheel_cuda": "13.2"},
        {"torch_gpus": (ORIN,), "wheel_cuda": "13.2.1"},
        {"torch_gpus": (x(9, 4),), "wheel_cuda": None, "wheel_archs": ("gfx90a", "gfx942")},  # AMD
    ],
)
def test_healthy_machines_have_no_findings(changes) -> None:
    assert what_is_wrong(replace(HEALTHY, **changes)) == []


# A machine and what is changed; the cause, words of problem and remedy, how the step begins.
ALONE = [
    (Facts(), {}, "no-gpu", "no NVIDIA GPU", "lspci", "read on with book/12_gpus.ipynb: it runs"),
    (Facts(), {"wsl": True}, "no-gpu", "no NVIDIA GPU", "in Windows", "read on"),
    (Facts(), {"container": True}, "no-gpu", "no NVIDIA GPU", "--gpus all", "read on"),
    # the driver
    (NO_DRIVER, {}, "no-driver", "1 NVIDIA GPU(s) on the PCI bus", "ubuntu-drivers", "sudo ubuntu"),
    (NO_DRIVER, {"kernel_driver": "580.65.06"}, "no-library",
     "(580.65.06) is loaded, but its library (libcuda)", "the whole driver", "sudo ubuntu-drivers"),
    (NO_DRIVER, {"smi_error": "it failed"}, "driver-not-running",
     "it failed", "modprobe", "sudo modprobe nvidia"),
    (NO_DRIVER, {"container": True, "kernel_driver": "580.65.06"}, "container",
     "started without GPUs", "--gpus all", "docker run --gpus all"),
    (BLIND, {"driver_gpus": (), "kernel_driver": None, "smi_error": "a mismatch"},
     "driver-mismatch", "its library and its kernel module differ", "restart", "sudo reboot"),
    (BLIND, {"driver_gpus": (), "smi_error": "Failed: Driver/library version mismatch"},
     "driver-mismatch", "its kernel module (580.65.06) differ in version", "restart", "sudo reb"),
    (BLIND, {"driver_gpus": (), "smi_error": "Unable to determine"}, "driver-not-running",
     "Unable to determine", "modprobe", "sudo modprobe nvidia"),
    (BLIND, {"driver_gpus": (), "kernel_driver": None}, "driver-not-running",
     "not loaded", "modprobe", "sudo modprobe nvidia"),
    (BLIND, {"driver_gpus": (), "smi_error": "No devices were found"}, "no-device",
     "finds no GPU", "dmesg", "sudo dmesg | grep"),
    (BLIND, {"driver_gpus": (), "container": True, "smi_error": "No devices were found"},
     "no-device", "finds no GPU", "dmesg", "sudo dmesg | grep"),
    # the wheel and the driver
    (CPU_WHEEL, {}, "cpu-wheel",
     "2.11.0+cpu was built without CUDA", "on Linux pip install torch", f"{REINSTALL}/cu130"),
    (CPU_WHEEL, {"driver_cuda": None}, "cpu-wheel", "", "on Linux pip", f"{REINSTALL}/cu130"),
    (CPU_WHEEL, {"driver_cuda": (12, 2)}, "cpu-wheel", "", "runs: pip", f"{REINSTALL}/cu126"),
    (CPU_WHEEL, {"driver_cuda": (12, 2), "driver_gpus": (T4,)}, "cpu-wheel",
     "", "/cu126", f"{REINSTALL}/cu126"),
    (CPU_WHEEL, {"driver_cuda": (12, 8), "driver_gpus": (B200,)}, "cpu-wheel",
     "", "that this machine runs: pip", f"{REINSTALL}/cu128"),
    (CPU_WHEEL, {"driver_gpus": (V100,)}, "cpu-wheel", "", "runs: pip", f"{REINSTALL}/cu126"),
    (CPU_WHEEL, {"driver_gpus": (B200, V100)}, "cpu-wheel",  # of two that no wheel fits, the newer
     "", "on Linux pip install torch torchvision", f"{REINSTALL}/cu130"),
    (BLIND, {"driver_cuda": (12, 2), "driver_version": None, "kernel_driver": None}, "old-driver",
     "13.0, and the driver supports CUDA up to 12.2", "update", f"{REINSTALL}/cu126"),
    (BLIND, {"driver_cuda": (12, 2), "driver_version": "535.183.01"}, "old-driver",
     "CUDA 13.0, and driver 535.183.01 supports CUDA up to 12.2",
     "branch 580 or newer; or, where you cannot, install an older release, for CUDA 12: pip",
     f"{REINSTALL}/cu126"),
    (BLIND, {"driver_cuda": (11, 4), "wheel_cuda": "12.6"}, "old-driver",
     "CUDA up to 11.4", "branch 525 or newer", "update the driver to branch 525"),
    (BLIND, {"driver_cuda": (10, 2), "driver_version": None, "wheel_cuda": "11.8"}, "old-driver",
     "driver 580.65.06 supports CUDA up to 10.2",  # the module's version will do
     "branch 450 or newer", "update the driver to branch 450"),
    (BLIND, {"wheel_cuda": "15.0"}, "old-driver",  # which driver that takes is not known yet
     "CUDA 15.0", "update the driver; or", f"{REINSTALL}/cu130"),
    *[(OLDER, {"driver_gpus": gpus}, "old-driver", "driver 570.86.15", "/cu128",
       f"{REINSTALL}/cu128")  # the one older wheel that knows Blackwell
      for card in (B200, B300, RTX_5090, GB10) for gpus in [(card,), (H100, card)]],
    # the wheel and the cards
    (HEALTHY, {"torch_gpus": (V100,)}, "no-kernels",
     "Tesla V100-SXM2-32GB has compute capability 7.0, and this wheel holds code for sm_75, sm_80",
     "an older release, for CUDA 12, that still holds it: pip install", f"{REINSTALL}/cu126"),
    (HEALTHY, {"torch_gpus": (H100, V100)}, "no-kernels",
     "Tesla V100", "for CUDA 12, that still holds it", f"{REINSTALL}/cu126"),
    (HEALTHY, {"torch_gpus": (B200, V100)}, "no-kernels",  # no wheel has code for both
     "Tesla V100", "hide this one with CUDA_VISIBLE_DEVICES", "nvidia-smi -L"),
    (HEALTHY, {"torch_gpus": (x(13, 0),)}, "no-kernels",
     "compute capability 13.0", f"a newer release of torch: {UPGRADE}", UPGRADE),
    (HEALTHY, {"torch_gpus": (x(3, 7),)}, "no-kernels", "3.7", "on the CPU", 'use device="cpu"'),
    (HEALTHY, {"torch_gpus": (x(5, 3),)}, "no-kernels", "5.3", "Jetson", "look for a wheel"),
    (HEALTHY, {"torch_gpus": (ORIN,)}, "no-kernels", "8.7", "Jetson", "look for a wheel"),
    (HEALTHY, {"wheel_archs": ("sm_80", "sm_120")}, "no-kernels", "9.0", "--upgrade", UPGRADE),
    (HEALTHY, {"wheel_archs": ("sm_100", "sm_120")}, "no-kernels",
     "9.0", "that this driver runs", f"{REINSTALL}/cu130"),
    (HEALTHY, {"torch_gpus": (x(9, 1),), "wheel_archs": ("sm_90a", "sm_100")}, "no-kernels",
     "9.1", "--upgrade", UPGRADE),
    (HEALTHY, {"torch_gpus": (B200,), "wheel_cuda": "12.6", "wheel_archs": ("sm_50", "sm_90")},
     "no-kernels", "10.0", "a newer release", UPGRADE),
    (HEALTHY, {"torch_gpus": (B200,), "wheel_cuda": "12.6", "wheel_archs": ("sm_50", "sm_90"),
               "driver_cuda": (12, 8)},
     "no-kernels", "10.0", "that this driver runs", f"{REINSTALL}/cu128"),
    # the environment
    (BLIND, {"visible_devices": ""}, "hidden", "=''", "unset CUDA", "unset CUDA_VISIBLE_DEVICES"),
    (BLIND, {"visible_devices": "1"}, "hidden", "hides the only GPU", "unset", "unset CUDA"),
    *[(BLIND, {"visible_devices": "-1", **gpus}, "hidden", f"='-1' hides {count}", "unset", "unset")
      for count, gpus in {"all 2 GPUs": {"driver_gpus": (H100,) * 2},
                          "all 4 GPUs": {"driver_gpus": (), "pci_gpus": 4},
                          "the only GPU": {"driver_gpus": (), "pci_gpus": 0}}.items()],
    (BLIND, {"torch_error": "Error 802: system not yet initialized"}, "unknown",
     "says: Error 802", "fabric manager", "sudo systemctl start nvidia-fabric"),
    (BLIND, {"torch_error": None}, "unknown", "says: no GPU", "the rights", "ls -l /dev/nvidia*"),
    (BLIND, {"visible_devices": "GPU-0"}, "unknown",
     "detected", "UUIDs", "unset CUDA_VISIBLE_DEVICES, then run this again"),
    # a torch that cannot be imported: no CPU wheel
    (BLIND, {**UNREAD, "import_error": LIBRARY}, "broken-torch", LIBRARY, TORCH, TORCH),
    *[(BLIND, {"import_error": said}, "broken-torch", said, "a file or folder of your own", step)
      for said, step in [
          ("OSError: [WinError 126] Error loading c10.dll. DLL load failed", TORCH),
          ("AttributeError: no attribute (from /home/me/torch.py)", "rename /home/me/torch.py if"),
          ("ImportError: numpy (from /usr/lib/python3/dist-packages/torch/a.py)", "python -c"),
          ("ImportError: numpy", "python -c")]],
    (BLIND, {**UNREAD, "import_error": "No module named 'torch'"}, "no-torch",
     "in this Python", "requirements.txt", "source .venv/bin/activate"),
]  # fmt: skip


@pytest.mark.parametrize("machine, changes, cause, says, remedy, step", ALONE)
def test_each_cause_is_found_alone_and_with_what_to_do(
    machine, changes, cause, says, remedy, step
) -> None:
    (finding,) = what_is_wrong(replace(machine, **changes))
    assert finding.cause == cause and says in finding.problem and remedy in finding.remedy
    assert finding.step.startswith(step)


def test_all_texts_of_the_file_are_for_a_machine_above(monkeypatch) -> None:
    spy = Mock(wraps=rules._finding)
    monkeypatch.setattr(rules, "_finding", spy)
    for machine, changes, *_ in ALONE:
        what_is_wrong(replace(machine, **changes))
    assert {call.args[0] for call in spy.call_args_list} == set(rules.CAUSES)


def test_several_causes_are_all_found() -> None:
    facts = replace(NO_DRIVER, wheel_cuda=None, wheel_archs=(), visible_devices="")
    assert causes(facts) == ["no-driver", "cpu-wheel", "hidden"]
    facts = replace(BLIND, driver_cuda=(12, 2), driver_gpus=(V100,), visible_devices="5")
    assert causes(facts) == ["old-driver", "no-kernels", "hidden"]
    facts = replace(NO_DRIVER, **UNREAD, import_error="No module named 'torch'", visible_devices="")
    assert causes(facts) == ["no-driver", "no-torch", "hidden"]
    assert causes(Facts(import_error=LIBRARY)) == ["broken-torch", "no-gpu"]


def test_one_sign_of_a_gpu_is_enough_to_look_further() -> None:
    signs = {"pci_gpus": 1, "kernel_driver": "580.65.06", "smi_error": "No devices"}
    for name, value in {**signs, "driver_gpus": (H100,)}.items():
        assert "no-gpu" not in causes(Facts(**{name: value})), name


def test_no_older_wheel_is_advised_where_none_would_do() -> None:
    first, _ = what_is_wrong(replace(OLDER, driver_gpus=(B200, V100)))  # none holds both
    assert first.remedy == first.step == "update the driver to branch 580 or newer"
    (finding,) = what_is_wrong(replace(BLIND, driver_cuda=(11, 4)))  # too old for it as well
    assert "install" not in finding.remedy and "install" not in finding.step


# --- the command -------------------------------------------------------------------------------


def test_command_explains_itself(capsys) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        command.main(["--help"])
    said = capsys.readouterr().out
    assert "Exit status" in said and "python -m utils.diagnosis --json >" in said
    assert all(f"\n  {key} " in said for key in command.report(Facts()))


@pytest.mark.parametrize("option", ["--nonsense", "nonsense", "--js", "--json=1"])
def test_an_option_that_does_not_exist_is_refused_in_a_sentence(option, capsys) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        command.main([option])
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.endswith(".\n")
    assert said.err.startswith("python -m utils.diagnosis: ") and option[:6] in said.err


@pytest.mark.parametrize(
    ("facts", "status", "verdict"),
    [
        (Facts(), 0, "no-gpu"),
        (HEALTHY, 0, "works"),
        (NO_DRIVER, 1, "repair"),
        (BLIND, 1, "repair"),
        (Facts(import_error="No module named 'torch'"), 1, "repair"),
    ],
)
def test_text_and_json_say_the_same(facts, status, verdict, monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "gather", lambda: facts)
    found, text = command.main([]), capsys.readouterr().out
    again, said = command.main(["--json"]), json.loads(capsys.readouterr().out)
    assert list(said) == ["facts", "findings", "verdict", "next", "status"]
    assert found == again == said["status"] == status and said["verdict"] == verdict
    assert said["facts"] == json.loads(json.dumps(dataclasses.asdict(facts)))
    assert all(f"{name:16} {value}\n" in text for name, value in dataclasses.asdict(facts).items())
    for finding in said["findings"]:
        assert list(finding) == ["cause", "problem", "remedy", "step"]
        assert f"\nProblem: {finding['problem']}.\nRemedy:  {finding['remedy']}.\n" in text
    works = "\nNothing to repair: torch can use 1 GPU(s).\n"
    assert text.count("Nothing to repair") == text.count(works) == (facts is HEALTHY)
    step = said["findings"][0]["step"] if facts != HEALTHY else "read on with book/12_gpus.ipynb"
    assert text.endswith(f"\n\nNext: {step}\n") and said["next"] == step and "\n" not in step
    for name in re.findall(r"[\w/]+\.(?:ipynb|txt)", step):
        assert (Path(__file__).resolve().parent.parent / name).is_file()
