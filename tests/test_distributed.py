"""Ranks that succeed, raise, hang, die and print too much; and that nothing is left of them."""

import ast
import contextlib
import functools
import importlib
import io
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler

from notebooks import keep_cells, read
from utils import distributed
from utils.distributed import SCRIPTS, RankError, RankTimeout, Source, torchrun

MARK = "BOOK_TEST_RUN"

# Without torch, a rank starts in no time.
HELLO = """
import json, os, sys
rank = int(os.environ["RANK"])
print("hello from", rank)
print(json.dumps({
    "rank": rank, "of": int(os.environ["WORLD_SIZE"]), "said": sys.argv[1:],
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "extra": os.environ.get("EXTRA"),
}))
"""

RAISES = """
import os, time
def share(rank):
    if rank == 1:
        raise ValueError("rank one's fault")
    time.sleep(30)
share(int(os.environ["RANK"]))
"""

MEETS = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        if "die" in sys.argv: os.kill(os.getpid(), 9)
        if "raise" in sys.argv: raise ValueError("rank one's fault")
        if "hang" in sys.argv: wait_for_ever()
    total = torch.ones(1)
    dist.all_reduce(total)
    print(json.dumps({"total": total.item()}))
    dist.destroy_process_group()
def wait_for_ever():
    time.sleep(100)
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str, name: str = "script.py") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch, request):
    """Every test of this file: no process that it started may outlive it."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv(MARK, mark)
    yield lambda: _marked(mark)
    assert not _marked(mark), "processes left behind"


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            own = process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE
            if not own and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
    return found


class Forked:
    """The launcher as a fork of this process, which has imported what takes it two seconds.

    It has what torchrun() asks of a ``subprocess.Popen``. Its memory holds the environment it was
    given, but /proc still shows this process's; so ``forked`` looks itself whether it has ended.
    """

    def __init__(self, command, *, env, stdin, stdout, stderr, start_new_session) -> None:
        assert command[:3] == [sys.executable, "-m", "utils.distributed"] and start_new_session
        assert (stdin, stderr) == (subprocess.DEVNULL, subprocess.STDOUT)
        self.returncode, output = None, stdout.fileno()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                os.environ.clear()
                os.environ.update(env)
                status = distributed._launch(int(command[3]), command[4], command[5:])
            except BaseException as error:
                status = error.code if isinstance(error, SystemExit) else 1
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 1)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("the launcher", timeout)
            time.sleep(0.01)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def forked(monkeypatch):
    """torchrun() forks its launcher, for tests of what it makes of the ranks and their ends.

    Tests of how the launcher starts and ends, and one of each kind besides, start the real one.
    """
    import torch.distributed.elastic.agent.server.local_elastic_agent
    import torch.distributed.run  # noqa: F401

    started = []

    def start(*command, **options) -> Forked:
        started.append(Forked(*command, **options))
        return started[-1]

    fields = {**vars(subprocess), "Popen": start}
    monkeypatch.setattr(distributed, "subprocess", SimpleNamespace(**fields))
    yield
    assert started and all(launcher.returncode is not None for launcher in started)


quick = pytest.mark.usefixtures("forked")


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
    torchrun(path, str(tmp_path / "seen"), ranks=1, device="cpu", timeout=60)


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


# --- failures ------------------------------------------------------------------------------------


@quick
def test_first_failing_rank_is_named_with_its_traceback(script) -> None:
    with pytest.raises(RankError) as caught:
        torchrun(script(RAISES), ranks=2, device="cpu", timeout=60)
    error = caught.value
    assert error.rank == 1 and error.exception == "ValueError: rank one's fault"
    assert "in share" in str(error) and "torch/distributed/run" not in str(error)


@quick
def test_the_cause_is_named_and_not_its_consequence(script) -> None:
    """Rank 0 fails too, within a moment: its peer is gone."""
    with pytest.raises(RankError) as caught:
        torchrun(script(MEETS), "raise", ranks=2, device="cpu", timeout=60)
    assert caught.value.rank == 1 and caught.value.exception == "ValueError: rank one's fault"
    assert "errors/__init__.py" not in str(caught.value)


@pytest.mark.parametrize("root", ["/opt/my env", str(distributed.ROOT / ".venv")])
def test_paths_of_this_machine_are_left_out(root) -> None:
    line = f'  File "{root}/lib/python3.11/site-packages/torch/nn.py", line 1, in f'
    assert distributed._short(line) == '  File "torch/nn.py", line 1, in f'
    assert distributed._short(f"{root}/lib/python3.11/site-packages/torch/nn.py") == "torch/nn.py"
    assert distributed._short(f'File "{SCRIPTS}/a.py"') == 'File "a.py"'


@quick
def test_rank_killed_by_a_signal(script) -> None:
    with pytest.raises(RankError) as caught:
        torchrun(script(MEETS), "die", ranks=2, device="cpu", timeout=60)
    assert (caught.value.rank, caught.value.exception) == (1, "killed by SIGKILL")


@pytest.mark.parametrize("seconds_before, culprit", [(1, 1), (40, 0)])
def test_who_was_killed_is_the_cause_unless_torchrun_killed_it(
    tmp_path, seconds_before, culprit
) -> None:
    """Rank 0 raised; rank 1 was killed: by someone, or by torchrun 30 s after rank 0 raised."""
    for rank, said in enumerate(["Traceback (most recent call last):\nOSError: gone\n", ""]):
        folder = tmp_path / "run" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(said)
    report = tmp_path / distributed.LAUNCHER
    report.write_text('{"0": 1, "1": -9}')
    raised = report.stat().st_mtime - seconds_before
    os.utime(tmp_path / "run/attempt_0/0/stderr.log", (raised, raised))
    os.utime(tmp_path / "run/attempt_0/1/stderr.log", (raised - 5, raised - 5))
    error = distributed._failed(Path("s.py"), distributed._Logs(tmp_path, 2))
    assert error.rank == culprit


@quick
@pytest.mark.parametrize("number, name", [(15, "SIGTERM"), (35, "signal 35")])
def test_any_signal_is_named(script, number, name) -> None:
    with pytest.raises(RankError, match=f"killed by {name}"):
        torchrun(script(f"import os; os.kill(os.getpid(), {number})"), ranks=1, device="cpu")


@quick
def test_exit_status_without_a_traceback(script) -> None:
    with pytest.raises(RankError, match="exited with status 3"):
        torchrun(script("import os; os._exit(3)"), ranks=1, device="cpu")


@quick
def test_tracebacks_are_not_coloured(script, monkeypatch) -> None:
    """A notebook's kernel sets FORCE_COLOR, and from 3.13 on Python's tracebacks obey it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("PYTHON_COLORS", "1")
    obeys = (  # as Python 3.13 does, on any Python
        "import os, sys\n"
        "color = os.environ.get('PYTHON_COLORS', '1') == '1' and 'NO_COLOR' not in os.environ\n"
        "start, end = ('\\x1b[1;35m', '\\x1b[0m') if color else ('', '')\n"
        "sys.stderr.write('Traceback (most recent call last):\\n  File \"s.py\", line 1\\n')\n"
        "sys.exit(f'{start}ValueError{end}: why')"
    )
    for text in (obeys, "raise ValueError('why')"):
        with pytest.raises(RankError) as caught:
            torchrun(script(text), ranks=1, device="cpu")
        assert caught.value.exception == "ValueError: why"
        assert "\x1b" not in str(caught.value)


@quick
def test_syntax_error(script) -> None:
    with pytest.raises(RankError, match="SyntaxError"):
        torchrun(script("def broken(:"), ranks=1, device="cpu")


@quick
def test_rank_without_a_result(script) -> None:
    silent = "import os\nprint('{}' if os.environ['RANK'] == '0' else '[1]')"
    with pytest.raises(RankError, match=r"rank 1 of script\.py printed no result"):
        torchrun(script(silent), ranks=2, device="cpu")


@quick
def test_chained_exceptions_are_told_whole(script) -> None:
    text = "try:\n    {}['a']\nexcept KeyError as e:\n    raise OSError('outer') from e"
    with pytest.raises(RankError) as caught:
        torchrun(script(text), ranks=1, device="cpu")
    assert caught.value.exception == "OSError: outer"
    assert "KeyError: 'a'" in caught.value.traceback


# --- hangs, floods, interrupts -------------------------------------------------------------------


@quick
def test_hang_ends_at_the_time_out(script) -> None:
    start = time.monotonic()
    with pytest.raises(RankTimeout, match="did not end within 5 s"):
        torchrun(script("import time; time.sleep(100)"), ranks=2, device="cpu", timeout=5)
    assert time.monotonic() - start < 30


@quick
def test_hang_is_noticed_before_and_says_where_each_rank_stood(script) -> None:
    with pytest.raises(RankTimeout, match="did nothing for 3 s") as caught:
        torchrun(script(MEETS), "hang", ranks=2, device="cpu", timeout=90, idle=3)
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
        torchrun(path, ranks=2, device="cpu", timeout=5)
    assert "rank 0: (it had already ended)" in str(caught.value)
    assert re.search(r"rank 1: pause \(\S+:3\) .*\(stopped by a signal", str(caught.value))


@quick
def test_ranks_that_had_not_started_are_not_said_to_have_ended(script) -> None:
    with pytest.raises(RankTimeout) as caught:
        torchrun(script(HELLO), ranks=2, device="cpu", timeout=0.001)
    assert str(caught.value).count("(it had not started)") == 2


def test_ranks_that_do_not_come_to_the_script_show_what_torchrun_said(script) -> None:
    text = "import sys, time\nprint('torchrun waits', flush=True)\ntime.sleep(100)"
    logs = distributed._Logs(script(text, "launcher.log").parent, 1)
    error = distributed._timed_out(Path("s.py"), logs, "did not end", {0: "sleeping"})
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

            times = lambda: (show()[0] / 2, show()[0] / 2, 9.0, 9.0)  # noqa: E731
            return SimpleNamespace(pid=number, cpu_times=times, status=lambda: show()[1])

        monkeypatch.setattr(distributed, "time", SimpleNamespace(monotonic=lambda: now))
        work = distributed._Work(psutil.Process())
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
    monkeypatch.setattr(distributed, "WAITS_FOR_ITS_TURN", {"running", "disk-sleep"})
    assert idle(ASLEEP, other)[-1] == said
    assert idle(ASLEEP, launcher=other)[-1] == said, "the launcher may be starting another"


def test_a_rank_that_ends_does_not_hide_what_another_does(idle) -> None:
    works = [(second, "sleeping") for second in range(4)]
    assert idle([(50, "sleeping"), None, None, None], works) == [0, 0, 0, 0]


def test_a_machine_that_stood_still_is_no_idle_rank(idle) -> None:
    """Nobody looked for 30 seconds; nor could a rank do anything."""
    assert idle(ASLEEP, after=[0.6, 0.6, 30, 0.6]) == [0, 0.5, 1, 1.5]


@quick
def test_rank_that_ignores_signals_is_stopped_too(script) -> None:
    stubborn = (
        "import signal, time, subprocess\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '200'])\n"
        "time.sleep(100)"
    )
    with pytest.raises(RankTimeout):
        torchrun(script(stubborn), ranks=2, device="cpu", timeout=5)


@quick
def test_nothing_is_left_of_a_rank_that_started_something_and_went(script) -> None:
    text = (
        "import subprocess\nsubprocess.Popen(['sleep', '200'], start_new_session=True)\nprint('{}')"
    )
    assert torchrun(script(text), ranks=1, device="cpu") == [{}]


def test_launcher_that_is_killed_takes_its_ranks_along(script) -> None:
    text = "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(200)"
    with pytest.raises(RankError, match="torchrun could not run"):
        torchrun(script(text), ranks=1, device="cpu")


@quick
def test_ten_megabytes_of_output_neither_block_nor_fill_the_page(script, capsys) -> None:
    flood = "for i in range(100_000): print('x' * 100)\nprint('{\"done\": 1}')"
    assert torchrun(script(flood), ranks=2, device="cpu") == [{"done": 1}] * 2
    out = capsys.readouterr().out
    assert len(out) < distributed.SHOWN + 500 and "the rest is not shown" in out


@quick
def test_result_with_what_python_takes_for_the_end_of_a_line(script) -> None:
    text = "import json\nprint(json.dumps({'said': 'a\\u2028b\\x85'}, ensure_ascii=False))"
    assert torchrun(script(text), ranks=1, device="cpu") == [{"said": "a\u2028b\x85"}]


def test_ranks_meet_where_the_host_name_resolves_to_nothing(script, monkeypatch, tmp_path) -> None:
    nowhere = "import socket\nsocket.gethostname = socket.getfqdn = lambda *_: 'nowhere.invalid'"
    script(nowhere, "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = "import json, os\nprint(json.dumps({'at': os.environ['MASTER_ADDR']}))"
    assert torchrun(script(text), ranks=1, device="cpu") == [{"at": "127.0.0.1"}]


@quick
def test_bytes_that_are_no_text(script, capsys) -> None:
    text = "import os\nos.write(1, b'caf\\xe9\\n')\nprint('{}')"
    assert torchrun(script(text), ranks=1, device="cpu") == [{}]
    assert "caf\N{REPLACEMENT CHARACTER}" in capsys.readouterr().out


def test_interrupt_stops_the_ranks(script, nothing_left) -> None:
    def interrupt() -> None:
        # The launcher and two ranks are there.
        _until(lambda: len(nothing_left()) >= 3, "the ranks never started")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with _interruptible():
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            torchrun(script("import time; time.sleep(100)"), ranks=2, device="cpu", timeout=60)
    thread.join()


@contextlib.contextmanager
def _interruptible():
    """SIGINT raises KeyboardInterrupt, as in a kernel that runs a cell.

    What a shell starts in the background begins with SIGINT ignored, and then Python leaves it so.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("there", [2, 4], ids=["launcher starting", "ranks running"])
def test_nothing_outlives_a_kernel_that_was_killed(
    there, script, nothing_left, monkeypatch, tmp_path
) -> None:
    path = script("import time; time.sleep(100)")
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "logs"))
    code = f"from utils.distributed import torchrun; torchrun({str(path)!r}, ranks=2, device='cpu')"
    kernel = subprocess.Popen([sys.executable, "-c", code], cwd=distributed.ROOT)
    _until(lambda: len(nothing_left()) >= there, "the ranks never started")
    kernel.kill()
    kernel.wait()
    _until(lambda: not nothing_left(), "ranks outlive the process that started them")
    assert not list((tmp_path / "logs").glob("tmp*")), "the folder of the logs is left"


def _until(condition, otherwise: str, seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


# --- scripts in the page -------------------------------------------------------------------------


def test_source_shows_the_file_or_parts_of_it(monkeypatch, tmp_path) -> None:
    text = "import os\n\n\n@cache\ndef one():\n    # why\n    return 1\n\n\nclass Two:\n    pass\n"
    (tmp_path / "s.py").write_text(text)
    monkeypatch.setattr(distributed, "SCRIPTS", tmp_path)
    assert repr(Source("s.py")) == "# book/scripts/s.py\n" + text.strip()
    shown = Source("s.py", "Two", "one")._repr_markdown_()
    parts = "class Two:\n    pass\n\n\n@cache\ndef one():\n    # why\n    return 1"
    assert shown == f"`book/scripts/s.py`\n\n```python\n{parts}\n```"
    with pytest.raises(ValueError, match="defines one, Two, but not three"):
        Source("s.py", "three")
    with pytest.raises(FileNotFoundError):
        Source("t.py")


# --- the scripts of the book ---------------------------------------------------------------------

# Chapter 0's script is for pasting, and says there how to use it: test_quickstart.py.
FILES = sorted(path for path in SCRIPTS.glob("*.py") if path.stem != "quickstart")
RANKED = [path for path in FILES if "torch.distributed" in path.read_text()]
every_script = pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
every_ranked_script = pytest.mark.parametrize("path", RANKED, ids=lambda p: p.name)


# Runs each script as __main__, in a child of one process that has imported what takes seconds.
RUN_ALL = """
import gc, json, os, runpy, sys, traceback, torch.distributed
from torch.nn.parallel import DistributedDataParallel
folder, jobs = sys.argv[1], json.loads(sys.argv[2])
gc.freeze()
for number, command in enumerate(jobs):
    child = os.fork()
    if child == 0:
        for stream in (1, 2):
            os.dup2(os.open(f"{folder}/{number}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
        sys.argv, sys.path[0], status = command, os.path.dirname(command[0]), 0
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
            sys.stderr.write("" if isinstance(end.code, int | None) else f"{end.code}")
        except BaseException:
            status = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # tearing torch down takes as long as importing it
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    open(f"{folder}/{number}.0", "w").write(str(status))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> dict[tuple[str, ...], subprocess.CompletedProcess]:
    """What came of each script started with ``--help``, and of those with ranks started alone."""
    folder = tmp_path_factory.mktemp("started")
    jobs = [*((str(path), "--help") for path in FILES), *((str(path),) for path in RANKED)]
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    command = [sys.executable, "-c", RUN_ALL, str(folder), json.dumps(jobs)]
    subprocess.run(command, check=True, env=clean, timeout=200)
    said = [[(folder / f"{i}.{n}").read_text() for n in range(3)] for i in range(len(jobs))]
    return {
        job: subprocess.CompletedProcess(job, int(status), out, err)
        for job, (status, out, err) in zip(jobs, said, strict=True)
    }


@every_script
def test_scripts_explain_themselves(path, started) -> None:
    done = started[str(path), "--help"]
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr
    how = "torchrun " if path in RANKED else "python "
    assert how in (ast.get_docstring(ast.parse(path.read_text())) or "")


@every_ranked_script
def test_scripts_started_without_torchrun_say_so(path, started) -> None:
    done = started[(str(path),)]
    assert done.returncode != 0 and "torchrun" in done.stderr
    assert "Traceback" not in done.stderr


def test_by_hand_refuses_a_batch_that_cannot_be_shared(monkeypatch, capfd) -> None:
    """Before it joins a group: 7 samples on 2 ranks were a traceback in the middle."""
    monkeypatch.setattr(sys, "argv", ["by_hand.py", "--samples", "7"])
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(SCRIPTS / "by_hand.py"), run_name="__main__")
    assert "a multiple of 2, at least 6" in capfd.readouterr().err


@every_script
def test_scripts_stand_alone(path) -> None:
    text = path.read_text()
    assert not re.search(r"^\s*(?:from|import) utils", text, re.MULTILINE)
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    long = [f.name for f in functions if f.end_lineno - f.lineno >= 50]
    assert not long and len(text.splitlines()) <= 400


def test_scripts_run_unchanged_on_two_nodes(tmp_path) -> None:
    """Two torchruns on this machine, as two nodes would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--local-addr=127.0.0.1",
    ]
    command += [SCRIPTS / "train_ddp.py", "--data=digits", "--epochs=1", f"--save={tmp_path / 'w'}"]
    # More threads, which is what one rank on a node gets, would only wait for each other.
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    nodes = [subprocess.Popen(command, env=env, **pipes) for _ in range(2)]
    said = [node.communicate(timeout=100) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    results = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert results[0] == results[1]
    assert sum("accuracy" in out.replace(out.splitlines()[-1], "") for out, _ in said) == 1


@quick
def test_training_speed_can_be_measured_without_a_gpu() -> None:
    options = ["--model", "mlp", "--batch", 8, "--global-batch", 8, "--ranks", 1, 2]
    options += ["--wrap", "auto", "lean", "--steps", 1, "--blocks", 1]
    rows = torchrun("ddp_speed.py", *options, ranks=2, device="cpu", quiet=True)[0]["rows"]
    tried = [(row["ranks"], row["batch"], row["wrapped"], row["lean"]) for row in rows]
    one, two = [(1, 8, False, False)], [(2, 8, True, False), (2, 8, True, True)]
    assert tried == one + two + [(2, 4, True, False), (2, 4, True, True)]
    assert all(row["step_ms"] > 0 for row in rows)


# --- train_ddp.py: what an edit must not lose ----------------------------------------------------


@pytest.fixture
def trainer(monkeypatch):
    """train_ddp.py as a module, and a function that plays one of its ranks without the others."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.reload(importlib.import_module("train_ddp"))
    events: list[str] = []

    def noting(name: str, call=lambda *args, **kwargs: None):
        def noted(*args, **kwargs):
            events.append(name)
            return call(*args, **kwargs)

        return noted

    def play(rank: int, ranks: int) -> list[str]:
        """From here on ``module`` is ``rank``; what it does is noted in the list returned."""
        events.clear()
        fake = SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: ranks)
        for name in ("init_process_group", "barrier", "all_reduce", "destroy_process_group"):
            setattr(fake, name, noting(name))
        monkeypatch.setattr(module, "dist", fake)
        own = functools.partial(DistributedSampler, num_replicas=ranks, rank=rank)
        monkeypatch.setattr(module, "DistributedSampler", own)
        monkeypatch.setattr(module, "DistributedDataParallel", lambda model: model)
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", ranks)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")  # more than there are GPUs
        return events

    monkeypatch.setattr(module, "load", noting("load", lambda *args: [_Images(64), _Images(10)]))
    for place, name in ((torch, "save"), (os, "replace"), (torch, "load")):
        call = noting(f"{place.__name__}.{name}", getattr(place, name))
        monkeypatch.setattr(place, name, call)
    return module, play


class _Images(Dataset):
    """Images and labels; notes which were asked for."""

    def __init__(self, count: int):
        self.count, self.asked = count, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        return torch.full((1, 8, 8), index / self.count), index % 10


def test_training_ranks_meet_before_they_read_what_another_writes_and_leave(
    trainer, tmp_path
) -> None:
    module, play = trainer
    options = ["--data=mnist", "--epochs=1", "--batch=32", f"--save={tmp_path / 'w'}"]
    order = {}
    for rank in (0, 1):  # rank 1 finds the file that rank 0 has left
        events = play(rank, 2)
        module.main(options)
        order[rank] = [event for event in events if event != "all_reduce"]
    meet, leave = "barrier", "destroy_process_group"
    join, written = "init_process_group", ("torch.save", "os.replace")
    assert order[0] == [join, "load", meet, "load", *written, meet, "torch.load", leave]
    assert order[1] == [join, meet, "load", meet, "torch.load", leave]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_ranks_evaluate_every_sample_once(trainer, ranks) -> None:
    module, play = trainer
    data = module.load()[1]
    seen = 0
    for rank in range(ranks):
        play(rank, ranks)
        seen += module.accuracy(module.CNN(side=8), data, torch.device("cpu"))[1]
    assert sorted(data.asked) == list(range(10)) and seen == 10


@pytest.mark.parametrize(
    "options, said",
    [
        (["--batch=63"], "--batch 63 does not divide among 2 ranks\n"),
        (["--batch=0"], "--batch 0 does not divide among 2 ranks\n"),
        (["--epochs=0"], "--epochs 0: one epoch is the least there is to train\n"),
    ],
)
def test_arguments_are_checked_before_a_rank_joins(trainer, capfd, options, said) -> None:
    module, play = trainer
    events = play(0, 2)
    with pytest.raises(SystemExit) as end:
        module.main(options)
    assert end.value.code == 2 and capfd.readouterr().err == said and events == []


def test_without_mnist_and_network_training_names_the_digits(trainer, monkeypatch) -> None:
    module, play = trainer

    def fails(*args):
        raise RuntimeError("Error downloading train-images")

    play(0, 2)
    monkeypatch.setattr(module, "load", fails)
    with pytest.raises(SystemExit, match=r"Error downloading.*: try --data digits"):
        module.main(["--data=mnist"])


def test_five_bugs_knows_how_many_there_are(capsys, monkeypatch) -> None:
    bugs = runpy.run_path(str(SCRIPTS / "five_bugs.py"))
    for wrong in (-1, 6):
        monkeypatch.setattr(sys, "argv", ["five_bugs.py", f"--show={wrong}"])
        with pytest.raises(SystemExit, match="2"):
            bugs["main"]()
        assert "invalid choice" in capsys.readouterr().err


def test_the_code_to_keep_of_ddp_is_one_training_under_torchrun(tmp_path) -> None:
    path = SCRIPTS.parent / "52_ddp.ipynb"
    (tmp_path / "script.py").write_text(keep_cells(read(path))[0].source)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    run = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*command, "script.py"], **run)
    assert done.returncode == 0 and done.stdout == "weight 2.00, loss 0.0000\n", done.stderr
    assert (tmp_path / "model.pt").exists()
