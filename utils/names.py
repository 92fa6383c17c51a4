"""What CUDA calls are for, and names of kernels short enough to read."""

import re


def call_kind(name: str) -> str:
    """Return what a CUDA runtime or driver call is for, from its name.

    ``"launch"`` (also of graphs), ``"wait"`` (returns only when the GPU has done something),
    ``"copy"`` (memcpy and memset; those that are not ``Async`` wait too, and one from or to
    pageable memory waits whatever its name) or
    ``"other call"``.

    >>> [call_kind(n) for n in ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaStreamSynchronize")]
    ['launch', 'launch', 'wait']
    """
    if "Launch" in name:
        return "launch"
    if "Synchronize" in name:
        return "wait"
    if "Memcpy" in name or "Memset" in name:
        return "copy"
    return "other call"


def short_name(name: str, limit: int = 36) -> str:
    """Return a kernel's, operator's or range's name without what only a compiler needs.

    >>> short_name("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)")
    'max_pool_forward_nchw'
    >>> short_name("Optimizer.step#SGD.step")
    'Optimizer.step'
    """
    own = re.match(r"(ProfilerStep|Optimizer\.\w+|enumerate\(DataLoader\))#", name)
    if own:  # torch's own ranges carry a number or a class
        return own[1]
    if name.startswith("_Z"):  # mangled: not meant to be read
        return "cutlass kernel" if "cutlass" in name else "(mangled)"
    if name.startswith("Mem"):  # "Memcpy HtoD (Pageable -> Device)"
        return name.split(" (")[0]
    # What a generic kernel is used for stands among its template's arguments.
    inner = re.search(r"\b(\w+Functor\w*|\w+_kernel_cuda|launch_\w+|cutlass_[a-z\d]\w+)\b", name)
    name = re.sub(r"^void |^autograd::engine::evaluate_function: ", "", name)
    name = name.replace("(anonymous namespace)::", "")
    plain, depth = "", 0
    for letter in name:  # templates nest, so no regular expression removes them
        depth += letter == "<"
        if depth == 0:
            plain += letter
        depth -= letter == ">"
    plain = re.sub(r"\s*\(.*\)$", "", plain).strip()
    if "::" in plain and not plain.startswith("aten::"):
        plain = plain.rsplit("::", 1)[1]
    if inner and re.search(r"elementwise_kernel$|multi_tensor_apply_kernel$|^Kernel2?$", plain):
        plain = inner[1]
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
