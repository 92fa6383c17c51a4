"""health.py: before training: does each rank reach all others, and how fast?"""

import os
from time import perf_counter as now

import torch
import torch.distributed as dist


def health(mib=16, wait=dist.default_pg_timeout / 90, kind=None):  # 20 seconds
    """Print how fast this rank hears each other one; if it does not, end in one sentence."""
    solo = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    kind, says, rates = kind or ("cuda" if torch.cuda.is_available() else "cpu"), "all", {}
    torch.cuda.set_device(dist.get_node_local_rank(0) if kind == "cuda" else -1)  # -1: none
    try:  # with gloo, too: its error has the address that it does not reach, where NCCL waits
        dist.init_process_group("cpu:gloo" + ",cuda:nccl" * (kind == "cuda"), timeout=wait, **solo)
        rank, n, (x, y) = dist.get_rank(), dist.get_world_size(), torch.ones(2, mib << 18).to(kind)
        for to, of in 2 * [((rank + k) % n, (rank - k) % n) for k in range(1, n)]:  # first, connect
            ways = [dist.P2POp(dist.irecv, y.zero_(), of), dist.P2POp(dist.isend, x, to)]
            start = dist.barrier() or now()
            says, (got, *sent) = of, dist.batch_isend_irecv(ways)  # NCCL: one, of both at once
            got.wait()
            rates[of], says = round(y[0].item() * y.nbytes / 1e9 / (now() - start), 2), to
            says = all(way.wait() for way in sent) and "all"
    except (RuntimeError, ValueError) as e:
        me, see = f"{os.uname().nodename}, rank {os.getenv('RANK')}", "{GLOO,NCCL}_SOCKET_IFNAME"
        raise SystemExit(f"{me} waited for {says}: see MASTER_ADDR, {see} ({e!s:.200})") from None
    print(f"rank {rank} of {n} on {os.uname().nodename}, {kind}, hears in GB/s: {rates}\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    health(kind=os.getenv("HEALTH_DEVICE"))
