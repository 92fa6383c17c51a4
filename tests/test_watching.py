"""Ranks that hang are noticed, and the message says where each stood; ranks at work go on."""

import io
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ranks import HELLO, MEETS, quick, starts_with
from utils.ranks import RankTimeout, torchrun, watching
from utils.ranks import logs as failures
from utils.ranks.logs import Logs

pytestmark = pytest.mark.usefixtures("nothing_left")


@quick
def test_hang_ends_at_the_time_out(script) -> None:
    start = time.monotonic()
    with pytest.raises(RankTimeout, match="did not end within 2 s"):
        torchrun(script("import time; time.sleep(100)"), ranks=2, device="cpu", timeout=2)
    assert time.monotonic() - start < 60


@quick
def test_hang_is_noticed_before_and_says_where_each_rank_stood(script) -> None:
    with pytest.raises(RankTimeout, match="did nothing for 2 s") as caught:
        torchrun(script(MEETS), "hang", ranks=2, device="cpu", timeout=200, idle=2)
    stacks = caught.value.stacks
    assert any(frame.startswith("all_reduce (torch/distributed/") for frame in stacks[0])
    assert stacks[1][0].startswith("wait_for_ever (") and stacks[1][1].startswith("main (")
    assert "rank 1: wait_for_ever" in str(caught.value)


@quick
def test_rank_stopped_by_a_signal_is_told_from_one_that_has_ended(script) -> None:
    path = script(
        "import os, signal\n"
        "def pause():\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "if os.environ['RANK'] == '1':\n    pause()"
    )
    with pytest.raises(RankTimeout) as caught:
        torchrun(path, ranks=2, device="cpu", idle=1)
    assert "rank 0: (it had already ended)" in str(caught.value)
    assert re.search(r"rank 1: pause \(\S+:3\) .*\(stopped by a signal", str(caught.value))


def test_ranks_that_had_not_started_are_not_said_to_have_ended(script, monkeypatch) -> None:
    starts_with(monkeypatch, lambda command, **how: subprocess.Popen(["sleep", "100"], **how))
    with pytest.raises(RankTimeout) as caught:
        torchrun(script(HELLO), ranks=2, device="cpu", timeout=0.001)
    assert str(caught.value).count("(it had not started)") == 2


def test_ranks_that_do_not_come_to_the_script_show_what_torchrun_said(script) -> None:
    text = "import sys, time\nprint('torchrun waits', flush=True)\ntime.sleep(100)"
    logs = Logs(Path("s.py"), script(text, "launcher.log").parent, 1)
    error = failures.timed_out(logs, "did not end", {0: "sleeping"})
    assert "rank 0: (it had not come to the script yet)" in str(error)
    assert str(error).endswith("torchrun said\n" + text)


@quick
def test_ranks_are_idle_only_when_the_last_one_at_work_has_ended(script, tmp_path) -> None:
    path = script(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '0': time.sleep(100)\n"
        "while time.process_time() < 2: pass\n"  # however long that takes on a busy machine
        "open(sys.argv[1], 'w').close()"
    )
    with pytest.raises(RankTimeout, match="did nothing for 1 s"):
        torchrun(path, tmp_path / "worked", ranks=2, device="cpu", idle=1)
    assert (tmp_path / "worked").exists(), "rank 1 was at work, and was stopped"


# --- who is idle, by a clock that the test moves -------------------------------------------------


@pytest.fixture
def idle(monkeypatch):
    """A function that looks at ranks once in a while: what idle() said after each second or so.

    A rank is the pairs of processor time and state that it shows at each look, and may show none.
    """

    def looks(*ranks: list, launcher: list | None = None, after: tuple = (1,) * 4) -> list[float]:
        now, look = 0.0, -1

        def process(number: int, shown: list) -> SimpleNamespace:
            def show() -> tuple[float, str]:
                if shown[look] is None:
                    raise psutil.NoSuchProcess(number)
                return shown[look]

            times = lambda: (show()[0] / 2, show()[0] / 2, now, now)  # noqa: E731
            return SimpleNamespace(pid=number, cpu_times=times, status=lambda: show()[1])

        monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now))
        work = watching.Work(psutil.Process())
        work.launcher = process(0, launcher or [(0, "sleeping")] * 9)
        children = [process(number, shown) for number, shown in enumerate(ranks, 1)]
        work.launcher.children = lambda: children
        said = []
        for seconds in after:
            now, look = now + seconds, look + 1
            said.append(work.idle())
        return said

    return looks


ASLEEP = [(1, "sleeping")] * 9


def test_ranks_are_idle_from_the_second_look_on(idle) -> None:
    assert idle(ASLEEP, after=[0.6] * 4) == [0, 0.5, 1, 1.5]
    assert idle(ASLEEP, after=[0.3] * 4) == [0, 0, 0, 0.5], "looked at too often"


def test_ranks_that_used_no_measurable_time_are_idle_once_they_have_started(idle) -> None:
    assert idle([(0, "sleeping")] * 4) == [0, 0.5, 1, 1.5]
    assert idle() == [0, 0, 0, 0], "none has started"


@pytest.mark.parametrize(
    "other, said",
    [
        ([(0.03, "sleeping"), (0.06, "sleeping"), (0.09, "sleeping"), (0.09, "sleeping")], 0.5),
        ([(0.01, "sleeping"), (0.02, "sleeping"), (0.03, "sleeping"), (0.04, "sleeping")], 1.5),
        ([(0, "sleeping"), (0, "sleeping"), (0, "running"), (0, "sleeping")], 0.5),
        ([(0, "sleeping"), (0, "sleeping"), (0, "disk-sleep"), (0, "sleeping")], 0.5),
        ([(0, "stopped")] * 4, 1.5),
        ([(0, "zombie")] * 4, 1.5),
        ([(2, "sleeping"), None, None, None], 1.5),
    ],
    ids=["works", "looks", "waits for its turn", "reads", "stopped", "ended", "gone"],
)
def test_one_rank_at_work_is_enough(idle, monkeypatch, other, said) -> None:
    monkeypatch.setattr(watching, "WAITS_FOR_ITS_TURN", {"running", "disk-sleep"})
    assert idle(ASLEEP, other)[-1] == said
    assert idle(ASLEEP, launcher=other)[-1] == said, "the launcher may be starting another"


def test_a_rank_that_ends_does_not_hide_what_another_does(idle) -> None:
    works = [(second, "sleeping") for second in range(4)]
    assert idle([(50, "sleeping"), None, None, None], works) == [0, 0, 0, 0]


def test_a_machine_that_stood_still_is_no_idle_rank(idle) -> None:
    """Nobody looked for 30 seconds; nor could a rank do anything."""
    assert idle(ASLEEP, after=[0.6, 0.6, 30, 0.6]) == [0, 0.5, 1, 1.5]


# --- what is shown of it, and when ---------------------------------------------------------------


class Page(io.StringIO):
    """A page, which shows what was printed when it is told to."""

    seen = ""

    def flush(self) -> None:
        self.seen = self.getvalue()


@pytest.fixture
def shown(tmp_path):
    """A function that gives what a page shows after each piece that rank 0 writes, and the end."""

    def watch(*pieces: str) -> list[str]:
        log = tmp_path / "run" / "attempt_0" / "0" / "stdout.log"
        log.parent.mkdir(parents=True)
        page, left, said = Page(), list(pieces), []

        def wait(timeout: float) -> None:
            said.append(page.seen)
            if left:
                with open(log, "a") as file:
                    file.write(left.pop(0))
                if left:
                    raise subprocess.TimeoutExpired("the launcher", timeout)

        watching.watch(SimpleNamespace(wait=wait), Logs(Path("s.py"), tmp_path, 1), 100, None, page)
        return [*said[1:], page.getvalue()]

    return watch


def test_lines_are_shown_when_they_are_whole_and_the_last_one_at_the_end(shown) -> None:
    pieces = ["one\ntw", "o\n", "{'no': JSON}\n{\"a\"", ": 1}\nlast"]
    assert shown(*pieces) == [
        "one\n",
        "one\ntwo\n",
        "one\ntwo\n{'no': JSON}\n",
        "one\ntwo\n{'no': JSON}\nlast\n",
    ]


@pytest.mark.parametrize(
    "text, kept",
    [
        ("1234\n1234\n1\n2\n", ["1234", "1234"]),
        ("1234\n12345\n2\n", ["1234"]),  # the second line would end exactly at the limit
    ],
)
def test_what_a_page_cannot_hold_is_left_out_once(shown, monkeypatch, text, kept) -> None:
    monkeypatch.setattr(watching, "SHOWN", 10)
    (said,) = shown(text)
    assert said.splitlines()[:-1] == kept
    assert "the rest is not shown" in said.splitlines()[-1]
