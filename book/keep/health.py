"""health.py: before training: does each rank reach all others, and which pair is slow?"""

import os
import socket
import time

import torch
import torch.distributed as dist


def health(mib=16, wait=dist.default_pg_timeout / 90):
    """Print how fast this rank hears each other one; if it does not, end in one sentence."""
    solo = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    host, kind, rates = socket.gethostname(), "cuda" if torch.cuda.is_available() else "cpu", {}
    torch.cuda.set_device(dist.get_node_local_rank(0) if kind == "cuda" else -1)
    says = "a rank did not come or is out of reach: see MASTER_ADDR and GLOO_SOCKET_IFNAME"
    try:  # with gloo, too: its error has the address that it does not reach, where NCCL waits
        dist.init_process_group("cpu:gloo" + ",cuda:nccl" * (kind == "cuda"), timeout=wait, **solo)
        rank, n, (x, y) = dist.get_rank(), dist.get_world_size(), torch.ones(2, mib << 18).to(kind)
        for to, of in 2 * [((rank + k) % n, (rank - k) % n) for k in range(1, n)]:  # first, connect
            says = f"nothing came from rank {of} in {wait.seconds} s: see NCCL_SOCKET_IFNAME"
            start = dist.barrier() or time.perf_counter()
            ways = dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y, of)
            one = [way.wait() for way in dist.batch_isend_irecv([*ways])] and y[0].item()
            rates[of] = round(one * mib * 2**20 / 1e9 / (time.perf_counter() - start), 2)
    except (RuntimeError, ValueError) as error:
        raise SystemExit(f"{host}: {says} ({error!s:.200})") from None
    print(f"rank {rank} of {n} on {host} hears, in GB/s by rank: {rates}\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    health()
