"""Say what the steps of a profile wait for, why, and what to do next.

how to make a trace:
  from torch.profiler import profile, schedule
  plan = schedule(wait=10, warmup=40, active=3, repeat=1)  # a loader's queue empties meanwhile
  with profile(schedule=plan, record_shapes=True, acc_events=True,
               on_trace_ready=lambda p: p.export_chrome_trace("trace.json")) as profiler:
      for step in range(53):
          train_one_step()
          profiler.step()

example:
  python -m utils.bounds trace.json --wall-us 30500
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from utils.bounds.evidence import SAME, Evidence
from utils.bounds.verdict import as_json, diagnose, is_nvidia, report
from utils.gpus import GPUS
from utils.profile import TraceError, load


def main(arguments: Sequence[str] | None = None) -> int:
    """Diagnose a trace; return the exit status, 2 if there is nothing to diagnose."""
    options = _options().parse_args(arguments)
    gpu = {gpu.name: gpu for gpu in GPUS}.get(options.gpu)
    try:
        trace = load(options.trace)
        if gpu and not is_nvidia(trace.device):
            raise ValueError(
                f"this is a profile of {trace.device}: the peaks of {gpu.name} say nothing of it"
            )
        found = diagnose(trace, wall=options.wall_us, gpu=gpu, device=options.device)
        check_wall(found.evidence, options.wall_us)
    except (TraceError, ValueError) as error:  # of which the first names the file
        named = "" if isinstance(error, TraceError) else f"{options.trace}: "
        print(f"{named}{error}", file=sys.stderr)
        return 2
    print(as_json(found) if options.json else report(found))
    return 0


def _options() -> argparse.ArgumentParser:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m utils.bounds",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [gpu.name for gpu in GPUS]
    parser.add_argument("trace", metavar="TRACE.json[.gz]", help="Chrome trace of torch.profiler")
    parser.add_argument(
        "--wall-us",
        type=float,
        metavar="US",
        help="µs (not ms) that a step takes without the profiler; what the profiler added is then "
        "taken off Python's share or, if that is shorter, off all of the host's in proportion, "
        "with a warning",
    )
    parser.add_argument("--gpu", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    of_several = "the number of the GPU to look at, if several worked"
    parser.add_argument("--device", type=int, metavar="N", help=of_several)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def check_wall(seen: Evidence, wall: float | None) -> None:
    """Refuse a time without the profiler that cannot be true.

    Raises
    ------
    ValueError
        If it is longer than the profiled step, or shorter than what the GPU did in it.
    """
    if wall is None:
        return
    gpu = (seen.busy + seen.exposed_nccl + seen.exposed_copies) * seen.wall
    if wall > SAME * seen.profiled:
        raise ValueError(
            f"--wall-us {wall:g} is more than the {seen.profiled:,.0f} µs of a profiled step, and "
            "the profiler makes no step faster: is it the time of one step, in µs?"
        )
    if wall * SAME < gpu:
        raise ValueError(
            f"--wall-us {wall:g} is less than the {gpu:,.0f} µs that the GPU works in a step: is "
            "it the time of one step, in µs (not ms), with the GPU waited for?"
        )


if __name__ == "__main__":
    gc.disable()  # the process ends soon; looking for garbage among a million spans takes seconds
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal or a pipe that may not know the µ
        encoding = "utf-8" if "--json" in sys.argv else None
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    sys.exit(main())
