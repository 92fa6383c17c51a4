"""The small package that the notebooks of *PyTorch on CUDA, Measured* share.

Each module has one job; what a page teaches stays in the page.

=============== ====================================================================
device          pick a device, describe the machine
diagnosis       why torch cannot use a GPU; ``python -m utils.diagnosis``
hardware        datasheet figures of common GPUs, with their sources
timing          medians with spread, on ``torch.utils.benchmark``
memory          sizes in readable units; peaks, blocks and lifetimes from the allocator
experiment      run live where the hardware is, replay the record elsewhere
fingerprint     the hash that ties a record to the code that made it
programs        a script and what it uses of others, as one text
sources         what a source defines, in a text that every Python gives alike
record          ``python -m utils.record``: run notebooks, write records and outputs
stored          small pictures and closed cells in what is stored
reading         how long a chapter takes to read
trace           save and read what the profiler saw
timeline        draw it: host, launches, kernels, and who leads to whom
bounds          what a step waits for; ``python -m utils.bounds``
stretches       who owns which microsecond of it
roofs           operations and bytes of an operator, and the least time for them
signature       draw who owns the moments of a step
cards           predictions beside measurements, as one card
draft           what stands for a measurement that nobody has made yet
brief           the box "In short", its numbers checked against their sources
distributed     start real ranks of a script from a cell, and leave none behind
data            MNIST, or a stand-in that says so
models          the networks that several chapters train
plotting        figures and tables in one style
=============== ====================================================================
"""
