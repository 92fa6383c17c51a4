"""Chapter 5.5: its job files, its cost model, and what two agents and a torn checkpoint say."""

import os
import re
import subprocess
import sys

import pytest
import torch
import yaml

from cases import cases
from notebooks import BOOK, read
from ranks import quicker, until
from utils import cost
from utils.ranks import torchrun

KEEP = BOOK / "keep"
PAGE = "\n".join(cell.source for cell in read(BOOK / "55_beyond.ipynb").cells)

# Some long options of sbatch, as https://slurm.schedmd.com/sbatch.html has them.
OPTIONS = """
account constraint cpus-per-gpu cpus-per-task error exclusive export gpus gpus-per-node
gres job-name mem nodelist nodes ntasks-per-node open-mode output partition requeue signal time
"""

# --- job files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train.sbatch", "train-job.yaml"])
def test_the_page_shows_the_job_file_word_for_word(name) -> None:
    assert (KEEP / name).read_text("utf-8").rstrip() in PAGE, f"book/keep/{name}: change both"


def test_slurm_knows_all_options_and_ranks_fit_the_gpus() -> None:
    text = (KEEP / "train.sbatch").read_text("utf-8")
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, re.M)
    options = dict(found)
    assert len(found) == text.count("#SBATCH") and options.keys() <= set(OPTIONS.split())
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert re.fullmatch(r"B:TERM@\d+", options["signal"]) and "requeue" in options


# Stand-ins for Slurm's commands: srun runs one task, which saves when scancel tells it to stop;
# a SIGTERM to srun itself kills its tasks ("forcing job termination", srun's source).
SCANCEL = """#!/bin/bash
if [[ "$*" == "--signal=TERM 17" ]]; then kill -USR1 $(cat training); fi
"""
SRUN = """#!/bin/bash
if [[ "$*" == *health.py* ]]; then echo > checking; sleep ${CHECKS:-0}; exit $HEALTH; fi
trap 'exit 137' TERM
trap 'echo > asked; sleep ${SAVES:-0}; echo saved; exit $STATUS' USR1
echo $$ > partly && mv partly training
if [ "$ENDS" ]; then exit $STATUS; fi
while true; do sleep 0.05; done
"""


@pytest.mark.parametrize(
    "case, told, seen, taken, again, want", cases("test_a_job_goes_back_until_it_is_done")
)
def test_a_job_goes_back_until_it_is_done(case, told, seen, taken, again, want, tmp_path) -> None:
    torch.save({"run": {"step": torch.tensor(taken)}}, tmp_path / "train.pt")
    if case != "done":  # sooner than torch
        (tmp_path / "torch.py").write_text(f'load = lambda *_, **k: {{"run": {{"step": {taken}}}}}')
    scontrol = '#!/bin/bash\necho "node0 $*"\n'
    for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", scontrol)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": str(tmp_path), "SLURM_JOB_ID": "17", **told}
    how = {"cwd": tmp_path, "env": env, "stdout": subprocess.PIPE, "text": True}
    job = subprocess.Popen(["bash", KEEP / "train.sbatch"], **how)
    for begun in seen:
        until((tmp_path / begun).exists, f"{case}: never {begun}", seconds=30)
        job.terminate()
    out, _ = job.communicate(timeout=30)
    assert job.returncode == want and ("requeue Incomplete 17" in out) == again, out
    assert (tmp_path / "training").exists() == (told["HEALTH"] == "0")


def test_kubernetes_pods_find_each_other_and_may_save_before_they_are_killed() -> None:
    service, job = yaml.safe_load_all((KEEP / "train-job.yaml").read_text("utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] and pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    said = " ".join(container["args"])
    assert f"--nnodes={spec['completions']} " in said
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}\n" in said
    assert f'--master-addr={name}-0.{pod["subdomain"]}"' in said
    assert pod["terminationGracePeriodSeconds"] > 30 and "--shutdown-timeout" not in said  # 2.11
    # A pod is done, and not started again, only with the last step: trained to, and looked for.
    assert re.search(r"--steps (\d+) ", said)[1] == re.search(r"== (\d+)'", said)[1]
    assert subprocess.run(["bash", "-n"], input=said, text=True).returncode == 0
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


# --- the code to keep ----------------------------------------------------------------------------


@quicker
def test_two_healthy_ranks_hear_each_other(script) -> None:
    source = (KEEP / "health.py").read_text("utf-8")
    source = source.replace("print(f", """print('{"of": %s}' % heard); print(f""")
    assert torchrun(script(source), ranks=2, device="cpu", quiet=True) == [{"of": [1]}, {"of": [0]}]


def test_a_rank_that_does_not_come_ends_the_check_in_one_sentence(run) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    source = (KEEP / "health.py").read_text("utf-8").replace("/ 90", "/ 1800")
    done = run(source, env={**env, "HEALTH_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""})
    assert done.status == 1 and "waited for its own device (" in done.err
    assert "Traceback" not in done.err and "MASTER_ADDR" not in done.err
    done = run(source, env=env)
    assert done.status == 1 and "waited for all: see MASTER_ADDR" in done.err
    assert "Traceback" not in done.err and "1/2 clients joined" in done.err
    lost = [run(source, env={n: "2"}) for n in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "RANK")]
    assert [(done.status, "Traceback" in done.err) for done in lost] == 3 * [(1, False)]
    assert all(re.search("variable .* expected", done.err) for done in lost)
    fake = "import torch.distributed as d; d.get_world_size = lambda: 3; d.batch_isend_irecv = 0\n"
    assert "waited for rank 2 (" in run(fake + source).err  # of two that do not exist


# --- the cost model ------------------------------------------------------------------------------

SMALL = cost.Network(1e9, 10, 1000, 1000)
FAST = cost.Cluster(1e14, 100e9, 10e9, latency=0)


def test_a_step_by_hand() -> None:
    assert SMALL.flops == 6e9 + 12 * 10 * 1e6
    alone = cost.step(SMALL, FAST, cost.Plan(), 1e6)
    assert alone["step"] == alone["compute"] == pytest.approx(SMALL.flops * 1e6 / 1e14)
    assert cost.all_reduce(8e9, 4, 1e9, 0) == pytest.approx(12)  # 2 x 3/4 of 8 s
    tensor = cost.step(SMALL, FAST, cost.Plan(tensor=2), 1e6)["tensor"]
    assert tensor == pytest.approx(4 * 10 * 2 * 1000 * 1e6 / 100e9)
    staged = cost.step(SMALL, FAST, cost.Plan(stages=5, microbatches=8, parts=2), 1e6)
    assert staged["bubble"] == pytest.approx(staged["compute"] * 4 / 16)
    # A group that fills machines has eight cards; with layers split over a machine's GPUs, one.
    for ranks, tensor, bus in ((64, 1, 80e9), (8, 1, 100e9), (64, 8, 10e9)):
        plans = [cost.Plan(ranks, tensor, shard=shard) for shard in (False, True)]
        ddp, fsdp = (cost.step(SMALL, FAST, plan, 1e4)["data"] for plan in plans)
        once = cost.all_reduce(2e9 / tensor, ranks, bus, 0)
        compute = SMALL.flops * 1e4 / plans[0].gpus / 1e14
        assert ddp == pytest.approx(max(once - compute * 2 / 3, once / 10))
        assert fsdp == pytest.approx(max(1.5 * once - compute, once / 10))
    assert cost.memory(SMALL, cost.Plan(8, 2, shard=True)) == 1e9
