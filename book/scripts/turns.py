"""train.py in processes that wait for their turns, so that arms can be timed one after another.

python turns.py 4x640 --turns --no-compile   train.py's options; a turn for each line of input
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import torch


def take_turns():
    """Let train.py wait, before a step, for a line with the number of steps that come next.

    It answers with their seconds, from an idle GPU to an idle GPU, and with its peak of memory. The
    loop is train.py's own: at the begin of a step it asks for the learning rate.
    """
    from whole import train  # which imports Arm from here

    rate, state = train.rate, {"step": -1, "left": 0, "start": 0.0}

    def waiting(step, steps):
        if step != state["step"]:  # it asks once for each group of parameters
            state["step"], state["left"] = step, state["left"] - 1
            if state["left"] < 0:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds = time.perf_counter() - state["start"]
                print("turn", seconds, torch.cuda.max_memory_allocated(), flush=True)
                state["left"] = int(sys.stdin.readline() or sys.exit()) - 1
                state["start"] = time.perf_counter()
        return rate(step, steps)

    train.rate = waiting


def started(name, *options, cache="", **pipes):
    """A process of this file; the folder for compiled kernels is new if `cache` is."""
    env = os.environ | ({"TORCHINDUCTOR_CACHE_DIR": cache} if cache else {})
    command = [sys.executable, __file__, name, *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, **pipes)


class Arm:
    """train.py with some options, in a process that waits for its turns."""

    def __init__(self, name, *options, metrics):
        self.folder = tempfile.TemporaryDirectory()
        options += ("--checkpoint", f"{self.folder.name}/train.pt", "--every", "100000")
        options += ("--metrics", metrics)
        self.process = started(name, "--turns", *options, stdin=subprocess.PIPE)
        self.answer()

    def answer(self):
        """Seconds of the last turn; keep the most bytes that were allocated."""
        for line in self.process.stdout:
            if line.startswith("turn "):
                seconds, self.peak = map(float, line.split()[1:])
                return seconds
        raise RuntimeError(f"an arm ended: {self.process.args}")

    def turn(self, steps):
        """Seconds of so many steps."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def main():
    from whole import size_of, train

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("size", help="layers x width, such as 4x640")
    parser.add_argument("--turns", action="store_true", help="wait for a line before some steps")
    parser.add_argument("--habits", action="store_true", help="the loop of like_nanogpt.py")
    settings, options = parser.parse_known_args()
    size_of(settings.size)
    if settings.turns:
        take_turns()
    program = train
    if settings.habits:
        import like_nanogpt as program
    sys.argv = [program.__file__, "--size", settings.size, *options]
    program.main()


if __name__ == "__main__":
    main()
