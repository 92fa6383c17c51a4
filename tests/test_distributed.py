"""torchrun() from a cell: what it gives, what it shows, what it refuses."""

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ranks import HELLO, MEETS, quick, starts_with
from utils.ranks import start as distributed
from utils.ranks import torchrun, watching
from utils.ranks.logs import lines_of, result_of
from utils.record import ROOT

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_each_rank_gives_its_result_and_rank_0_is_heard(script, capsys) -> None:
    # torchrun has options that begin with --log, too.
    results = torchrun(script(HELLO), "--log", 64, ranks=3, device="cpu", env={"EXTRA": 7})
    assert [r["rank"] for r in results] == [0, 1, 2]
    assert all(r["of"] == 3 and r["said"] == ["--log", "64"] for r in results)
    assert all(r["gpus"] == "" and r["extra"] == "7" for r in results)
    out = capsys.readouterr().out
    assert out == "3 ranks of script.py: gloo on CPU\nhello from 0\n"


@quick
def test_quiet_shows_only_what_ran_where(script, capsys) -> None:
    torchrun(script(HELLO), ranks=1, device="cpu", quiet=True)
    assert capsys.readouterr().out == "1 rank of script.py: gloo on CPU\n"


@quick
@pytest.mark.parametrize("gpus, expected", [(2, "NCCL on 2 GPUs"), (1, "gloo on CPU")])
def test_gpus_are_used_only_if_every_rank_gets_one(
    script, capsys, monkeypatch, gpus, expected
) -> None:
    monkeypatch.setattr(distributed, "gpu_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    results = torchrun(script(HELLO), ranks=2, quiet=True)
    assert capsys.readouterr().out == f"2 ranks of script.py: {expected}\n"
    assert {r["gpus"] for r in results} == ({None} if gpus == 2 else {""})


class Asked(Exception):
    """What the launcher was asked, instead of starting it."""


@pytest.fixture
def asked(script, monkeypatch):
    """A function that gives the environment in which ranks would start on two GPUs."""

    def start(command, *, env, **how):
        raise Asked(env)

    def ask(**options) -> dict[str, str]:
        with pytest.raises(Asked) as caught:
            torchrun(script(HELLO), **options)
        return caught.value.args[0]

    starts_with(monkeypatch, start)
    monkeypatch.setattr(distributed, "gpu_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return ask


def test_what_ranks_find_in_their_environment(asked, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in ("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"):
        monkeypatch.delenv(name, raising=False)
    env = asked(ranks=1)
    assert env["PYTHONPATH"] == f"{ROOT}{os.pathsep}/mine"
    assert env["OMP_NUM_THREADS"] == env["PYTHONUNBUFFERED"] == env["PYTHONFAULTHANDLER"] == "1"
    assert asked(ranks=1, env={"OMP_NUM_THREADS": 2})["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    "ranks, device, said",
    [
        (1, None, "NCCL on 1 GPU"),
        (2, None, "NCCL on 2 GPUs"),
        (3, None, "gloo on CPU"),
        (1, "cpu", "gloo on CPU"),
    ],
)
def test_gpus_are_hidden_from_ranks_on_the_cpu(asked, capsys, ranks, device, said) -> None:
    env = asked(ranks=ranks, device=device)
    assert capsys.readouterr().out.endswith(f" of script.py: {said}\n")
    assert env.get("CUDA_VISIBLE_DEVICES") == ("" if "CPU" in said else None)


def test_threads_leave_printing_to_the_one_that_asks(script, capsys) -> None:
    path, said = script(HELLO), [io.StringIO(), io.StringIO()]
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(torchrun, path, ranks=1, device="cpu", file=file) for file in said]
        assert [len(run.result()) for run in runs] == [1, 1]
    expected = "1 rank of script.py: gloo on CPU\nhello from 0\n"
    assert [file.getvalue() for file in said] == [expected] * 2
    assert capsys.readouterr().out == ""


def test_ranks_meet(script) -> None:
    both = torchrun(script(MEETS), ranks=2, device="cpu", idle=30)
    assert both == [{"total": 2.0}, {"total": 2.0}]


def test_ranks_meet_where_the_host_name_resolves_to_nothing(script, monkeypatch, tmp_path) -> None:
    nowhere = "import socket\nsocket.gethostname = socket.getfqdn = lambda *_: 'nowhere.invalid'"
    script(nowhere, "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = "import json, os\nprint(json.dumps({'at': os.environ['MASTER_ADDR']}))"
    assert torchrun(script(text), ranks=1, device="cpu") == [{"at": "127.0.0.1"}]


# --- what they print -----------------------------------------------------------------------------


@quick
def test_output_streams_while_the_ranks_run(script, monkeypatch, tmp_path) -> None:
    class Page(io.StringIO):
        def write(self, text: str) -> int:
            if "first" in text:
                (tmp_path / "seen").touch()
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Page())
    path = script(
        "import sys, time\nfrom pathlib import Path\nprint('first', flush=True)\n"
        "while not Path(sys.argv[1]).exists():\n    time.sleep(0.05)\nprint('{}')"
    )
    # Ends at once if the line comes while the rank still runs, and else only at the time-out.
    torchrun(path, str(tmp_path / "seen"), ranks=1, device="cpu", timeout=200)


@quick
def test_ten_megabytes_of_output_neither_block_nor_fill_the_page(script, capsys) -> None:
    flood = "for i in range(100_000): print('x' * 100)\nprint('{\"done\": 1}')"
    assert torchrun(script(flood), ranks=2, device="cpu") == [{"done": 1}] * 2
    out = capsys.readouterr().out
    assert len(out) < watching.SHOWN + 500 and "the rest is not shown" in out


@pytest.mark.parametrize("line, counts", [("{}", True), ("[1]", False), ("{not JSON", False)])
def test_a_result_is_a_json_object(line, counts) -> None:
    assert (result_of(line) is not None) is counts


@pytest.mark.parametrize("text, lines", [("", []), ("a\n\nb\n", ["a", "", "b"]), ("a", ["a"])])
def test_the_line_feed_at_the_end_begins_no_line(text, lines) -> None:
    assert lines_of(text) == lines


@quick
def test_result_with_what_python_takes_for_the_end_of_a_line(script) -> None:
    text = "import json\nprint(json.dumps({'said': 'a\\u2028b\\x85'}, ensure_ascii=False))"
    assert torchrun(script(text), ranks=1, device="cpu") == [{"said": "a\u2028b\x85"}]


@quick
def test_bytes_that_are_no_text(script, capsys) -> None:
    text = "import os\nos.write(1, b'caf\\xe9\\n')\nprint('{}')"
    assert torchrun(script(text), ranks=1, device="cpu") == [{}]
    assert "caf\N{REPLACEMENT CHARACTER}" in capsys.readouterr().out


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [0, -1, 1.0, True, None])
def test_zero_ranks_are_an_error_and_not_a_silent_success(script, ranks) -> None:
    with pytest.raises(ValueError, match="at least one"):
        torchrun(script(HELLO), ranks=ranks)


def test_unknown_device(script) -> None:
    with pytest.raises(ValueError, match="'cpu'"):
        torchrun(script(HELLO), ranks=1, device="cuda:0")


def test_missing_script_names_those_there_are() -> None:
    with pytest.raises(FileNotFoundError, match=r"no script nowhere\.py; .*\.py"):
        torchrun("nowhere.py", ranks=1)
