"""ahead.py: batches made in a thread, some steps ahead."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torchvision.io import decode_jpeg, encode_jpeg


def ahead(load, jobs, device, depth=2, priority=0):
    """Yield load(job), a list of tensors, for each job: made in a thread, some batches ahead."""
    side = torch.cuda.Stream(device, priority) if device.type == "cuda" else None
    side.wait_stream(torch.cuda.current_stream(device)) if side else None  # for what load reads

    def make(job):
        with torch.cuda.stream(side):  # None: no stream
            batch = load(job)
        if side:
            side.synchronize()  # the thread waits, not your program
        return batch

    with ThreadPoolExecutor(1) as thread:
        futures = (thread.submit(make, job) for job in jobs)
        waiting = [next(futures, None) for _ in range(depth + 1)]
        while future := waiting.pop(0):  # None: no more jobs
            for t in future.result() if side else []:
                t.record_stream(torch.cuda.current_stream(device))
            yield future.result()  # raises here what load raised there
            waiting.append(next(futures, None))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
files = [encode_jpeg(torch.full((3, 375, 500), 9 * k, dtype=torch.uint8)) for k in range(16)]
batches = ahead(lambda job: [torch.stack(decode_jpeg(job, "RGB", device))], 8 * [files], device)
print(f"{sum(len(images) for (images,) in batches)} images decoded")
