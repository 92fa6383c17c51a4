"""health.py: before training: does every rank hear every other?"""

from os import environ as env
from platform import node

import torch
import torch.distributed as dist


def health(mib=16, wait=dist.default_pg_timeout / 90, kind=None):  # 20 seconds
    """Print which ranks this one hears; if one does not answer, end in one sentence."""
    many = "RANK" in env or env.get("OMPI_COMM_WORLD_SIZE", env.get("SLURM_NTASKS", "1")) != "1"
    solo = {} if many else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    kind, who = kind or ("cuda" if torch.cuda.is_available() else "cpu"), "its own device"
    try:
        torch.cuda.set_device(dist.get_node_local_rank(0) if kind == "cuda" else -1)  # -1: none
        (mine, theirs), who = torch.full((2, mib << 18), -1.0, device=kind), "all: see MASTER_ADDR"
        # With gloo, too: its error has the address that it does not reach, where NCCL waits.
        dist.init_process_group("cpu:gloo" + ",cuda:nccl" * (kind == "cuda"), timeout=wait, **solo)
        rank, n, heard, who = dist.get_rank(), dist.get_world_size(), [], "all"
        for to, of in [((rank + k) % n, (rank - k) % n) for k in range(1, n)]:
            who = dist.barrier() or f"rank {of}"
            ways = dist.P2POp(dist.irecv, theirs, of), dist.P2POp(dist.isend, mine.fill_(rank), to)
            for work in dist.batch_isend_irecv(list(ways)):  # NCCL: one, of both at once
                who = work.wait() and f"rank {to} or {of}"
            heard, who = [*heard, int(theirs[-1])], "all"  # each rank sends its number
    except Exception as e:
        raise SystemExit(f"{node()}, rank {env.get('RANK')} waited for {who} ({e!s:.200})") from e
    print(f"rank {rank} of {n} on {node()}, {kind}, hears {sorted(heard)}\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    health(kind=env.get("HEALTH_DEVICE"))
