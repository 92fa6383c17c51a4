"""What is wrong, and what to do next, from facts that are made up; and the command that says it."""

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from machines import BLIND, H100, HEALTHY, NO_DRIVER, V100
from utils.diagnosis import Facts, rules, what_is_wrong
from utils.diagnosis import __main__ as command

TORCH = "pip install --force-reinstall torch torchvision"
REINSTALL = f"{TORCH} --index-url https://download.pytorch.org/whl"
B200 = ("NVIDIA B200", (10, 0))
OLDER = replace(BLIND, driver_cuda=(12, 8), driver_version="570.86.15")
CPU_WHEEL = replace(BLIND, wheel_cuda=None, wheel="2.11.0+cpu", wheel_archs=())
UNREAD = {"wheel": None, "wheel_cuda": None, "wheel_archs": ()}
LIBRARY = "OSError: libcudart.so.13: cannot open (from /env/site-packages/torch/a.py)"


def causes(facts: Facts) -> list[str]:
    return [finding.cause for finding in what_is_wrong(facts)]


CARDS = {"H100": H100, "V100": V100, "B200": B200, "B300": ("NVIDIA B300", (10, 3))}
CARDS |= {"RTX 5090": ("NVIDIA GeForce RTX 5090", (12, 0)), "GB10": ("NVIDIA GB10", (12, 1))}
CARDS |= {"T4": ("Tesla T4", None), "Orin": ("Orin", (8, 7))}  # the driver does not tell all
CARDS |= {f"X {a}.{b}": ("NVIDIA X", (a, b)) for a in range(20) for b in range(10)}


def changed(machine: Facts, changes: dict) -> Facts:
    """The machine with other facts, as diagnosis.yml writes them."""
    tuples = {name: tuple(value) for name, value in changes.items() if isinstance(value, list)}
    tuples |= {n: tuple(CARDS[card] for card in tuples[n]) for n in tuples if n.endswith("_gpus")}
    return replace(machine, **changes | tuples)


MADE_UP = yaml.safe_load(Path(__file__).with_name("diagnosis.yml").read_text(encoding="utf-8"))
MACHINES = {"Facts": Facts(), "HEALTHY": HEALTHY, "NO_DRIVER": NO_DRIVER, "BLIND": BLIND}
MACHINES |= {"OLDER": OLDER, "CPU_WHEEL": CPU_WHEEL}
ALONE = [(changed(MACHINES[name], changes), *rest) for name, changes, *rest in MADE_UP["alone"]]


@pytest.mark.parametrize("changes", MADE_UP["healthy"])
def test_healthy_machines_have_no_findings(changes) -> None:
    assert what_is_wrong(changed(HEALTHY, changes)) == []


@pytest.mark.parametrize("machine, cause, says, remedy, step", ALONE)
def test_each_cause_is_found_alone_and_with_what_to_do(machine, cause, says, remedy, step) -> None:
    (finding,) = what_is_wrong(machine)
    assert finding.cause == cause and says in finding.problem and remedy in finding.remedy
    assert finding.step.startswith(step.replace("REINSTALL", REINSTALL))


def test_all_texts_of_the_file_are_for_a_machine_above(monkeypatch) -> None:
    spy = Mock(wraps=rules._finding)
    monkeypatch.setattr(rules, "_finding", spy)
    for machine, *_ in ALONE:
        what_is_wrong(machine)
    assert {call.args[0] for call in spy.call_args_list} == set(rules.CAUSES)


def test_several_causes_are_all_found() -> None:
    facts = replace(NO_DRIVER, wheel_cuda=None, wheel_archs=(), visible_devices="")
    assert causes(facts) == ["no-driver", "cpu-wheel", "hidden"]
    facts = replace(BLIND, driver_cuda=(12, 2), driver_gpus=(V100,), visible_devices="5")
    assert causes(facts) == ["old-driver", "no-kernels", "hidden"]
    facts = replace(NO_DRIVER, **UNREAD, import_error="No module named 'torch'", visible_devices="")
    assert causes(facts) == ["no-driver", "no-torch", "hidden"]
    assert causes(Facts(import_error=LIBRARY)) == ["broken-torch", "no-gpu"]
    for sign in ({"pci_gpus": 1}, {"kernel_driver": "580"}, {"smi_error": "No devices"}):
        assert "no-gpu" not in causes(Facts(**sign)), "one is enough to look further"
    assert "no-gpu" not in causes(Facts(driver_gpus=(H100,)))


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
    assert found == again == said["status"] == status and said["verdict"] == verdict
    assert said["facts"] == json.loads(json.dumps(dataclasses.asdict(facts)))
    assert all(f"{name:16} {value}\n" in text for name, value in dataclasses.asdict(facts).items())
    for finding in said["findings"]:
        assert f"\nProblem: {finding['problem']}.\nRemedy:  {finding['remedy']}.\n" in text
    works = "\nNothing to repair: torch can use 1 GPU(s).\n"
    assert text.count("Nothing to repair") == text.count(works) == (facts is HEALTHY)
    step = said["findings"][0]["step"] if facts != HEALTHY else "read on with book/12_gpus.ipynb"
    assert text.endswith(f"\n\nNext: {step}\n") and said["next"] == step and "\n" not in step
    for name in re.findall(r"[\w/]+\.(?:ipynb|txt)", step):
        assert (Path(__file__).resolve().parent.parent / name).is_file()
