"""What is made of evidence: the verdict, its doubts, its words; and the command that says them."""

import json
import math
import os
import re
import subprocess
import sys

import pytest

from cases import cases
from notebooks import BOOK, ROOT
from planted import H200, Planted, host_bound
from utils.bounds import BOUNDS, OWNERS, diagnose, report, verdict
from utils.bounds.__main__ import check_wall, main
from utils.bounds.evidence import MAJORITY, Evidence
from utils.bounds.owners import SILENCE
from utils.bounds.roofline import NEAR
from utils.bounds.verdict import NEXT, Diagnosis, as_json, is_nvidia, next_step, warnings_about
from utils.profile import Span, Trace, Work

PARTS = ("exposed_nccl", "exposed_copies", "to_host", "nccl", "pause", "products", "unlaunched")
PARTS += ("of_peak", "of_bandwidth", "beyond", "kernels", "kernel")


def evidence(shares: dict[str, float], **fields) -> Evidence:
    """Of one step of 1 ms, of which owners have ``shares``; nothing else is known of it."""
    known = {"steps": 1, "marked": True, "wall": 1_000.0, "profiled": 1_000.0, "busy": 0.0}
    known |= dict.fromkeys(PARTS, 0.0) | {"host": {}}
    return Evidence(shares=dict.fromkeys(OWNERS, 0.0) | shares, **known | fields)


@pytest.fixture
def judged(monkeypatch):
    """A function that gives the diagnosis for evidence; its step lasts from 100 to 200 µs."""

    def judge(shares: dict[str, float], call=("cudaLaunchKernel", 120), **fields) -> Diagnosis:
        seen = evidence(shares, **fields)
        monkeypatch.setattr(verdict, "examine", lambda trace, **options: seen)
        calls = [Span(name, begin, begin + 1) for name, begin in [call] if name]
        work = [Work("kernel", 150, 160)]
        return diagnose(Trace(ranges=[Span("step", 100, 200)], calls=calls, work=work))

    return judge


# --- the verdict ---------------------------------------------------------------------------------


def test_without_a_bound_the_largest_owner_says_what_to_do(judged) -> None:
    found = judged({"memory": 0.45, "data": 0.4})
    assert found.bound == "unclear" and found.next == f"for memory: {NEXT['memory']}"


@pytest.mark.parametrize("owner, reached", [("memory", "of_bandwidth"), ("arithmetic", "of_peak")])
def test_two_fifths_of_a_roof_are_enough_to_be_bound_by_it(judged, owner, reached) -> None:
    assert judged({owner: 0.9}, **{reached: 0.40}).bound == owner
    assert judged({owner: 0.9}, **{reached: 0.39}).bound == "unclear"


def test_the_rest_must_be_a_majority_without_what_is_impossible(judged) -> None:
    fields = {"of_bandwidth": 0.9, "busy": 1.0}
    assert judged({"memory": 0.75}, beyond=0.25, **fields).bound == "memory"
    found = judged({"memory": 0.75}, beyond=0.26, **fields)
    assert found.bound == "unclear" and "more than 100%" in found.reason
    assert judged({"memory": 0.6}, beyond=0.5, of_bandwidth=0.9, busy=0.1).bound == "memory"
    assert judged({"data": 0.6}, beyond=1.0, busy=0.4).bound == "data", (
        "of a loader it says nothing"
    )


@pytest.mark.parametrize("owner", ["silent host", "python", "slow CUDA call"])
@pytest.mark.parametrize("name", ["StreamBeginCapture", "StreamEndCapture", "GraphInstantiate"])
def test_a_graph_is_captured_in_the_step(judged, owner, name) -> None:
    for begin, inside in ((99, False), (100, True), (199, True), (200, False)):
        said = judged({owner: 0.9}, call=(f"cuda{name}", begin)).reason
        assert ("captures a CUDA graph" in said) is inside, begin


# --- its words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "copies, to_host, said",
    [
        (0.4, 0.20, "40% for the copy itself"),
        (0.4, 0.21, "21% for copies to the host"),
        (0.04, 0.04, "4% for the copy itself"),
        (0.06, 0.06, "6% for copies to the host"),
    ],
)
def test_copies_to_the_host_are_named_if_they_are_most(judged, copies, to_host, said) -> None:
    assert said in judged({"data": 0.9}, exposed_copies=copies, to_host=to_host).reason


@pytest.mark.parametrize("marked, whole", [(True, "step"), (False, "profile")])
def test_three_calls_are_named_and_that_nobody_launched_most_kernels(judged, marked, whole) -> None:
    calls = {"cudaFree": 0.4, "cudaMalloc": 0.3, "cuMemMap": 0.1, "cuMemUnmap": 0.05}
    said = judged({"allocator": 0.9}, calls=calls, marked=marked).reason
    assert said.endswith(f": cudaFree 40%, cudaMalloc 30%, cuMemMap 10% of the {whole}")
    said = judged({"neither roof": 0.9}, unlaunched=0.51 if marked else 0.5).reason
    assert ("no operator launched most of them" in said) is marked


@pytest.mark.parametrize("nvidia", [True, False])
def test_whose_card_it_is(judged, nvidia) -> None:
    amd = ("AMD Instinct MI300X", "Radeon RX 7900", "Instinct MI250", "AMD Custom", "gfx942")
    for name in ("NVIDIA H200", "Tesla T4", None) if nvidia else amd:
        assert is_nvidia(name) is nvidia
        said = judged({"neither roof": 0.9}, blind="utils.gpus does not list it", device=name).next
        assert ("--gpu" in said) is nvidia and ("rocprof" in said) is not nvidia, name


def test_only_a_silent_host_needs_stacks() -> None:
    assert next_step("python", evidence({})) == NEXT["python"]
    assert "with_stack=True" in next_step("silent host", evidence({}))
    assert next_step("silent host", evidence({}, silent_in={"f": 0.9})) == NEXT["silent host"]


@pytest.mark.parametrize("shares, fields, said", cases("test_warnings_begin_where_they_matter"))
def test_warnings_begin_where_they_matter(shares, fields, said) -> None:
    found = warnings_about(evidence(shares, **fields))
    assert len(found) == len(said) and all(map(str.__contains__, found, said)), found


# --- as text, as JSON, held against the stopwatch ------------------------------------------------


def test_owners_of_a_tenth_of_a_percent_are_told_and_smaller_ones_not(judged) -> None:
    shares = {"python": 0.9985, "data": 0.001, "memory": 0.0005, "arithmetic": 0.0004}
    lines = report(judged(shares, nccl=0.3, exposed_nccl=0.2, kernels=7)).splitlines()
    assert lines[1] == "owners of the step: Python 99.9%; data 0.1%; memory 0.1%"
    assert "only NCCL 20.0%" in lines[3] and "7 kernels a step" in lines[3]


def test_json_says_everything_once_in_plain_letters_and_numbers(judged) -> None:
    text = as_json(judged({"python": 0.9}, notes=("doubtful",), device="NVIDIA H200"))
    assert "1,000 µs" in text and not {"shares", "notes"} & json.loads(text)["evidence"].keys()
    with pytest.raises(ValueError):
        as_json(judged({"python": 0.9}, kernel=math.nan))


def test_the_stopwatchs_time_may_differ_by_five_percent(judged) -> None:
    """The GPU works for 600 µs: more is impossible in less; and the profiler speeds nothing up."""
    parts = {"busy": 0.3, "exposed_nccl": 0.2, "exposed_copies": 0.1}
    seen = evidence({}, profiled=1_200.0, **parts)
    for wall in (None, 572, 1_000, 1_259):
        check_wall(seen, wall)
    with pytest.raises(ValueError, match="less than the 600 µs"):
        check_wall(seen, 571)
    with pytest.raises(ValueError, match="more than the 1,200 µs"):
        check_wall(seen, 1_261)


def test_constants_mean_what_the_page_says_and_every_owner_has_a_chapter_that_is_there() -> None:
    assert (MAJORITY, NEAR, SILENCE) == (0.5, 0.2, 1000) and len(BOUNDS) == 5
    assert NEXT.keys() == set(OWNERS)
    for text in NEXT.values():
        chapters = re.findall(r"(\d)\.(\d)", text)
        assert chapters and all(list(BOOK.glob(f"{a}{b}_*.ipynb")) for a, b in chapters), text


# --- from a terminal -----------------------------------------------------------------------------


def test_command_line(tmp_path, capsys) -> None:
    """On a trace whose steps wait 580 of 600 µs for Python, but only under the profiler."""
    planted = Planted()
    for i in range(3):
        planted.step(600 * i, 599)
        planted.end = 600 * i + 310
        planted.elementwise(600 * i + 300, 0.9)
    path = str(planted.write(tmp_path))
    assert main([path]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Python: ") and "owners of the step: Python 58." in out
    assert main([path, "--wall-us", "260"]) == 0
    assert capsys.readouterr().out.startswith("memory: ")


def test_command_line_shows_the_evidence(tmp_path, capsys) -> None:
    planted = Planted().step(0, 1_000).kernel(390, 400, 50, "ncclDevKernel", op=None)
    planted.copy(395, 5, 450, 100, "DtoH", 9).product(15, 0.7, "c10::Half", H200.fp16)
    path = str(planted.elementwise(20, 0.9).write(tmp_path))
    assert main([path]) == 0
    _, shares, host, gpu, kernels, after = capsys.readouterr().out.splitlines()
    assert shares.startswith("owners of the step: Python 4") and " 0.0%" not in shares
    assert host.startswith("host: loader 0.0%, blocked 0.5%, operators and calls ")
    assert gpu.startswith("GPU: computes 44.7%, only NCCL 5.0%, only copies 10.0%; 2 kernels")
    assert "44.4% in products; 70.0% of the peak" in kernels and "90.0% of the band" in kernels
    assert after.startswith("next: for Python: ") and "chapter 6.2" in after


def test_command_line_takes_a_gpu_that_the_table_lists_and_that_it_may_be(tmp_path, capsys) -> None:
    for device, status in (("NVIDIA Imaginary 1", 0), ("AMD Instinct MI300X", 2)):
        path = str(Planted(device).step(0, 300).elementwise(5, 0.9).write(tmp_path))
        assert main([path]) == 0 and capsys.readouterr().out.startswith("unclear: ")
        assert main([path, "--gpu", "H200 SXM"]) == status
        out, said = capsys.readouterr()
        assert out[:8] == ("memory: " if not status else "")
        assert ("this is a profile of AMD Instinct MI300X" in said) is bool(status)
        with pytest.raises(SystemExit, match=r"^2$"):
            main([path, "--gpu", "H2000"])


WRONG = {
    "--wall-us=0.995": "less than the",  # ms
    **dict.fromkeys([f"--wall-us={us}" for us in ("-5", "0", "nan", "inf")], "above 0"),
    "--wall-us=2000": "more than the 995 µs",
    "--wall-us=50": "less than the 90 µs that the GPU works",
    "--device=1": "GPU 1 did nothing here; those that worked: 7",
}


@pytest.mark.parametrize("wrong", [*WRONG, "cut.json", "cpu.json", "nowhere.json"])
def test_options_and_files_that_cannot_be_true_are_refused_in_a_sentence(tmp_path, capsys, wrong):
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    cpu = Planted().add("cpu_op", "aten::mm", 1, 2)
    (tmp_path / "cpu.json").write_text(json.dumps(cpu.document()))
    path = host_bound().write(tmp_path)
    assert main([str(path), wrong] if wrong in WRONG else [str(tmp_path / wrong)]) == 2
    out, said = capsys.readouterr()
    assert (path.name if wrong in WRONG else wrong) in said and WRONG.get(wrong, "") in said
    assert out == "" and len(said.splitlines()) == 1, said


def test_json_has_everything_that_the_text_has(tmp_path, capsys) -> None:
    path = str(Planted(None).step(0, 1_000).kernel(5, 10, 900).write(tmp_path))
    assert main([path, "--wall-us=995"]) == main([path, "--wall-us=995", "--json"]) == 0
    text, line = re.fullmatch(r"(?s)(.*\n)(.+\n)", capsys.readouterr().out).groups()
    found = json.loads(line)
    assert found.keys() == {"bound", "reason", "shares", "evidence", "warnings", "next"}
    assert text.startswith(f"{found['bound']}: {found['reason']}\n")
    assert text.endswith(f"\nnext: {found['next']}\n")
    assert f"\nwarning: {found['warnings'][0]}\n" in text
    assert sum(found["shares"].values()) == pytest.approx(1) and found["evidence"]["steps"] == 1


@pytest.mark.parametrize(
    "options, status, says",
    [([], 0, r"995 \xb5s"), (["--json"], 0, "995 µs"), (["gone.json"], 2, "gone.json: No such")],
)
def test_command_line_from_a_shell_that_does_not_know_the_micro_sign(
    tmp_path, options, status, says
) -> None:
    """Its status and what it says, whatever importing torch says."""
    path = [] if status else [str(host_bound().write(tmp_path))]
    command = [sys.executable, "-m", "utils.bounds", *path, *options]
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8")
    assert done.returncode == status
    assert says in (done.stderr if status else done.stdout)
    assert len(done.stderr.splitlines()) == (status > 0), done.stderr


def test_the_command_needs_neither_torch_nor_matplotlib() -> None:
    """Importing them takes longer than reading most traces."""
    code = "import sys, utils.bounds.__main__ as c; print({'torch', 'matplotlib'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "set()", done.stderr
