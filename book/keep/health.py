"""health.py: before training: does every rank hear every other?"""

import os
from platform import node
from time import perf_counter as now

import torch
import torch.distributed as dist


def health(mib=16, wait=dist.default_pg_timeout / 90, kind=None):  # 20 seconds
    """Print that this rank hears each other one; if it does not, end in one sentence."""
    solo = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    kind, who = kind or ("cuda" if torch.cuda.is_available() else "cpu"), "its own device"
    try:
        torch.cuda.set_device(dist.get_node_local_rank(0) if kind == "cuda" else -1)  # -1: none
        (x, y), who = torch.ones(2, mib << 18).to(kind), "all: see MASTER_ADDR, *_SOCKET_IFNAME"
        # With gloo, too: its error has the address that it does not reach, where NCCL waits.
        dist.init_process_group("cpu:gloo" + ",cuda:nccl" * (kind == "cuda"), timeout=wait, **solo)
        rank, n, rates = dist.get_rank(), dist.get_world_size(), {}
        for to, of in 2 * [((rank + k) % n, (rank - k) % n) for k in range(1, n)]:  # first, connect
            ways = [dist.P2POp(dist.irecv, y.zero_(), of), dist.P2POp(dist.isend, x, to)]
            start = dist.barrier() or now()
            who, (got, *sent) = of, dist.batch_isend_irecv(ways)  # NCCL: one, of both at once
            who, rate = got.wait() and to, y[0].item() * y.nbytes / 1e9 / (now() - start)
            rates[of], who = round(rate, 2), all(way.wait() for way in sent) and "all"
    except Exception as e:
        raise SystemExit(f"{node()}, rank {os.getenv('RANK')} waited for {who} ({e!s:.200})") from e
    # No bandwidths: most of so short a message's time is not the network's.
    print(f"rank {rank} of {n} on {node()}, {kind}, hears in GB/s: {rates}\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    health(kind=os.getenv("HEALTH_DEVICE"))
