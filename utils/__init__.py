"""The small package that the notebooks of *PyTorch on CUDA, Measured* share.

Each module has one job, said in its first sentence; what a page teaches stays in the page. The
page ``book/api.md`` lists them all.
"""
