"""What is wrong, and what to do next, from facts that are made up."""

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from machines import BLIND, H100, HEALTHY, NO_DRIVER, V100
from utils.diagnosis import Facts, what_is_wrong
from utils.diagnosis import __main__ as command
from utils.diagnosis.__main__ import main, report

REINSTALL = (
    "pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl"
)


def causes(facts: Facts) -> list[str]:
    return [finding.cause for finding in what_is_wrong(facts)]


def test_healthy_machines_have_no_findings() -> None:
    assert what_is_wrong(HEALTHY) == []
    # What works needs no explanation: a container without nvidia-smi, a driver older than the wheel
    # within the same CUDA major version, one GPU chosen of eight.
    assert what_is_wrong(replace(HEALTHY, driver_gpus=(), driver_version=None)) == []
    assert what_is_wrong(replace(HEALTHY, wheel_cuda="13.2")) == []
    assert what_is_wrong(replace(HEALTHY, driver_gpus=(H100,) * 8, visible_devices="3")) == []
    assert what_is_wrong(replace(HEALTHY, driver_cuda=(14, 1))) == []


@pytest.mark.parametrize(
    ("facts", "cause", "says", "remedy"),
    [
        (Facts(), "no-gpu", "no NVIDIA GPU", "lspci"),
        (Facts(wsl=True), "no-gpu", "no NVIDIA GPU", "in Windows"),
        (Facts(container=True), "no-gpu", "no NVIDIA GPU", "--gpus all"),
        (NO_DRIVER, "no-driver", "no NVIDIA driver", "ubuntu-drivers"),
        (
            replace(NO_DRIVER, kernel_driver="580.65.06"),
            "no-library",
            "(580.65.06) is loaded, but its library (libcuda)",
            "the whole driver",
        ),
        (replace(NO_DRIVER, smi_error="it failed"), "driver-not-running", "it failed", "modprobe"),
        (
            replace(NO_DRIVER, kernel_driver="580.65.06", smi_error="it failed"),
            "driver-not-running",
            "it failed",
            "modprobe",
        ),
        (
            replace(BLIND, driver_gpus=(), kernel_driver=None, smi_error="a mismatch"),
            "driver-mismatch",
            "its library and its kernel module differ",
            "restart",
        ),
        (
            replace(BLIND, driver_cuda=(12, 2), driver_version=None, kernel_driver=None),
            "old-driver",
            "13.0, and the driver supports CUDA up to 12.2",
            "update",
        ),
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
            "its kernel module (580.65.06) differ in version",
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
            "an older release, for CUDA 12, that still holds it: pip install --force-reinstall",
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
    (finding,) = what_is_wrong(facts)
    assert finding.cause == cause
    assert says in finding.problem
    assert remedy in finding.remedy


def test_several_causes_are_all_found() -> None:
    facts = replace(NO_DRIVER, wheel_cuda=None, wheel_archs=(), visible_devices="")
    assert causes(facts) == ["no-driver", "cpu-wheel", "hidden"]
    facts = replace(BLIND, driver_cuda=(12, 2), driver_gpus=(V100,), visible_devices="5")
    assert causes(facts) == ["old-driver", "no-kernels", "hidden"]


def test_an_old_card_beside_a_new_one_is_named() -> None:
    (finding,) = what_is_wrong(replace(HEALTHY, torch_gpus=(H100, V100)))
    assert finding.problem.startswith("Tesla V100")
    assert what_is_wrong(replace(HEALTHY, torch_gpus=(V100,), wheel_archs=("compute_70",))) == []


def test_a_card_in_a_gap_between_architectures_needs_a_newer_wheel() -> None:
    (finding,) = what_is_wrong(replace(HEALTHY, wheel_archs=("sm_80", "sm_120")))
    assert finding.cause == "no-kernels" and "--upgrade" in finding.remedy


def test_a_wheel_that_does_not_name_its_architectures_is_not_blamed() -> None:
    assert what_is_wrong(replace(HEALTHY, wheel_archs=())) == []


@pytest.mark.parametrize(
    "sign",
    [
        {"pci_gpus": 1},
        {"kernel_driver": "580.65.06"},
        {"smi_error": "No devices"},
        {"driver_gpus": (H100,)},
    ],
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
    (finding,) = what_is_wrong(replace(facts, visible_devices="-1"))
    assert finding.cause == "hidden" and f"hides {count}" in finding.problem


B200, B300 = ("NVIDIA B200", (10, 0)), ("NVIDIA B300", (10, 3))
RTX_5090 = ("NVIDIA GeForce RTX 5090", (12, 0))


@pytest.mark.parametrize("blackwell", [B200, B300, RTX_5090, ("NVIDIA GB10", (12, 1))])
def test_blackwell_under_an_older_driver_is_sent_to_the_one_wheel_that_knows_it(blackwell) -> None:
    old = replace(BLIND, driver_cuda=(12, 8), driver_version="570.86.15")
    assert "/cu126" in what_is_wrong(old)[0].remedy
    for gpus in [(blackwell,), (H100, blackwell)]:
        (finding,) = what_is_wrong(replace(old, driver_gpus=gpus))
        assert "/cu128" in finding.remedy and finding.step == f"{REINSTALL}/cu128"


def test_no_older_wheel_is_advised_where_none_holds_code_for_all_cards() -> None:
    old = replace(BLIND, driver_cuda=(12, 8), driver_gpus=(B200, V100))
    first, second = what_is_wrong(old)
    assert first.remedy == first.step == "update the driver to branch 580 or newer"
    assert second.problem.startswith("Tesla V100") and "hide this one" in second.remedy
    assert second.step.startswith("nvidia-smi -L")


def test_no_older_wheel_is_advised_where_the_driver_is_too_old_for_it_as_well() -> None:
    (finding,) = what_is_wrong(replace(BLIND, driver_cuda=(11, 4)))
    assert "install" not in finding.remedy and "install" not in finding.step


@pytest.mark.parametrize("card", [B200, B300, RTX_5090, H100])
def test_cards_that_todays_wheels_know(card) -> None:
    assert what_is_wrong(replace(HEALTHY, torch_gpus=(card,))) == []


@pytest.mark.parametrize(
    ("driver", "step"),
    [((12, 8), f"{REINSTALL}/cu128"), ((13, 0), "pip install --upgrade torch torchvision")],
)
def test_blackwell_with_a_wheel_of_before_its_time(driver, step) -> None:
    facts = replace(
        HEALTHY,
        driver_cuda=driver,
        torch_gpus=(B200,),
        wheel_cuda="12.6",
        wheel_archs=("sm_50", "sm_80", "sm_90"),
    )
    (finding,) = what_is_wrong(facts)
    assert finding.cause == "no-kernels" and finding.step == step
    assert ("that this driver runs" in finding.remedy) == (driver[0] == 12)


def test_a_wheel_for_newer_cards_only() -> None:
    (finding,) = what_is_wrong(replace(HEALTHY, wheel_archs=("sm_100", "sm_120")))
    assert "that this driver runs" in finding.remedy and finding.step == f"{REINSTALL}/cu130"


def test_a_card_of_the_oldest_version_in_the_wheel_is_not_too_old() -> None:
    facts = replace(HEALTHY, torch_gpus=(("NVIDIA X", (9, 0)),), wheel_archs=("sm_90a", "sm_100"))
    assert what_is_wrong(facts) == []
    facts = replace(HEALTHY, torch_gpus=(("NVIDIA X", (9, 1)),), wheel_archs=("sm_90a", "sm_100"))
    assert "--upgrade" in what_is_wrong(facts)[0].step
    facts = replace(HEALTHY, torch_gpus=(("NVIDIA X", (8, 9)),), wheel_archs=("sm_89a", "sm_90"))
    assert what_is_wrong(facts) == []


def test_jetson_boards_follow_rules_of_their_own() -> None:
    orin = ("Orin", (8, 7))
    (finding,) = what_is_wrong(replace(HEALTHY, torch_gpus=(orin,)))
    assert "jetson" in finding.step
    assert what_is_wrong(replace(HEALTHY, torch_gpus=(orin,), wheel_cuda="13.2")) == []
    assert what_is_wrong(replace(HEALTHY, torch_gpus=(orin,), wheel_cuda="13.2.1")) == []


@pytest.mark.parametrize(
    ("driver", "gpus", "index"),
    [
        ((13, 0), (H100,), "cu130"),
        (None, (H100,), "cu130"),
        ((12, 2), (H100,), "cu126"),
        ((12, 8), (B200,), "cu128"),
        ((13, 0), (V100,), "cu126"),
        ((13, 0), (B200, V100), "cu130"),  # of two that no wheel fits, the newer
        ((12, 2), (("Tesla T4", None),), "cu126"),
    ],
)
def test_a_cpu_wheel_is_replaced_by_one_that_runs_here(driver, gpus, index) -> None:
    facts = replace(BLIND, wheel_cuda=None, driver_cuda=driver, driver_gpus=gpus)
    (finding,) = what_is_wrong(facts)
    assert finding.step == f"{REINSTALL}/{index}" and f"/{index}" in finding.remedy
    assert ("on Linux pip install torch torchvision" in finding.remedy) == (index == "cu130")


def test_a_wheel_for_other_makers_gpus_is_not_judged() -> None:
    amd = replace(HEALTHY, wheel_cuda=None, wheel_archs=("gfx90a", "gfx942"))
    assert what_is_wrong(replace(amd, torch_gpus=(("AMD Instinct MI300X", (9, 4)),))) == []


def test_an_architecture_of_a_kind_that_we_do_not_know_may_run() -> None:
    assert what_is_wrong(replace(HEALTHY, wheel_archs=("sm_80", "sm_90x"))) == []


def test_a_torch_that_cannot_be_imported_is_no_cpu_wheel() -> None:
    broken = {"wheel": None, "wheel_cuda": None, "wheel_archs": ()}
    said = "OSError: libcublas.so.13: cannot open shared object file (from /x/torch/__init__.py)"
    assert causes(replace(BLIND, **broken, import_error=said)) == ["broken-torch"]
    assert causes(Facts(import_error=said)) == ["broken-torch", "no-gpu"]
    facts = replace(NO_DRIVER, **broken, import_error="No module named 'torch'", visible_devices="")
    assert causes(facts) == ["no-driver", "no-torch", "hidden"]


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("OSError: libcudart.so.13: cannot open (from /env/site-packages/torch/a.py)", "pip"),
        ("OSError: [WinError 126] Error loading c10.dll. DLL load failed", "pip"),
        ("AttributeError: no attribute (from /home/me/torch.py)", "rename /home/me/torch.py if"),
        ("ImportError: numpy (from /usr/lib/python3/dist-packages/torch/a.py)", "python -c"),
        ("ImportError: numpy", "python -c"),
    ],
)
def test_what_to_do_about_a_torch_that_cannot_be_imported(said, step) -> None:
    found = what_is_wrong(Facts(import_error=said))[0]
    assert found.step.startswith(step) and said in found.problem


# --- the command -------------------------------------------------------------------------------


def say(facts: Facts, monkeypatch, capsys, *options: str) -> tuple[int, str]:
    """Status and output of the command on a machine of these facts."""
    monkeypatch.setattr(command, "gather", lambda: facts)
    return main(options), capsys.readouterr().out


def test_command_explains_itself(capsys) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    said = capsys.readouterr().out
    assert "Exit status" in said and "python -m utils.diagnosis --json >" in said
    assert all(f"\n  {key} " in said for key in report(Facts()))


@pytest.mark.parametrize("option", ["--nonsense", "nonsense", "--js", "--json=1"])
def test_an_option_that_does_not_exist_is_refused_in_a_sentence(option, capsys) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main([option])
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
    found, text = say(facts, monkeypatch, capsys)
    again, printed = say(facts, monkeypatch, capsys, "--json")
    said = json.loads(printed)
    assert list(said) == ["facts", "findings", "verdict", "next", "status"]
    assert found == again == said["status"] == status and said["verdict"] == verdict
    assert said["facts"] == json.loads(json.dumps(dataclasses.asdict(facts)))
    assert all(f"{name:16} {value}\n" in text for name, value in dataclasses.asdict(facts).items())
    for finding in said["findings"]:
        assert list(finding) == ["cause", "problem", "remedy", "step"]
        assert f"\nProblem: {finding['problem']}.\nRemedy:  {finding['remedy']}.\n" in text
    assert ("Nothing to repair" in text) == (facts is HEALTHY)
    assert ("\nNothing to repair: torch can use 1 GPU(s).\n" in text) == (facts is HEALTHY)
    assert text.endswith(f"\n\nNext: {said['next']}\n") and "\n" not in said["next"]


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (HEALTHY, "read on with book/12_gpus.ipynb"),
        (Facts(), "read on with book/12_gpus.ipynb: it runs here"),
        (NO_DRIVER, "sudo ubuntu-drivers install"),
        (replace(NO_DRIVER, visible_devices="", wheel_cuda=None), "sudo ubuntu-drivers install"),
        (replace(NO_DRIVER, container=True), "docker run --gpus all"),
        (replace(BLIND, driver_gpus=(), smi_error="version mismatch"), "sudo reboot"),
        (replace(BLIND, driver_gpus=(), smi_error="No devices were found"), "sudo dmesg | grep"),
        (replace(BLIND, driver_gpus=(), smi_error="failed"), "sudo modprobe nvidia"),
        (replace(BLIND, visible_devices="-1"), "unset CUDA_VISIBLE_DEVICES"),
        (replace(BLIND, torch_error="Error 802: system"), "sudo systemctl start nvidia-fabric"),
        (replace(BLIND, torch_error=None), "ls -l /dev/nvidia*"),
        (
            replace(BLIND, visible_devices="GPU-1"),
            "unset CUDA_VISIBLE_DEVICES, then run this again",
        ),
        (replace(BLIND, driver_cuda=(12, 2)), f"{REINSTALL}/cu126"),
        (replace(BLIND, driver_cuda=(11, 4)), "update the driver to branch 580 or newer"),
        (replace(BLIND, wheel_cuda=None), f"{REINSTALL}/cu130"),
        (replace(HEALTHY, torch_gpus=(V100,)), f"{REINSTALL}/cu126"),
        (replace(HEALTHY, torch_gpus=(("X", (13, 0)),)), "pip install --upgrade torch torchvision"),
        (replace(HEALTHY, torch_gpus=(("K80", (3, 7)),)), 'use device="cpu"'),
        (replace(HEALTHY, torch_gpus=(("Nano", (5, 3)),)), "look for a wheel"),
    ],
)
def test_the_last_line_says_what_to_do_next(facts, step, monkeypatch, capsys) -> None:
    _, text = say(facts, monkeypatch, capsys)
    assert text.splitlines()[-1].startswith(f"Next: {step}")


def test_every_file_that_the_command_names_exists() -> None:
    book = Path(__file__).resolve().parent.parent
    for facts in (HEALTHY, Facts(), Facts(import_error="No module named 'torch'")):
        for name in re.findall(r"[\w/]+\.(?:ipynb|txt)", report(facts)["next"]):
            assert (book / name).is_file(), name
