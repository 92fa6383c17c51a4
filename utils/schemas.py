"""Which arguments an operator of PyTorch writes, from the list that PyTorch ships.

The list lies beside torch, as text, so that it can be read without importing torch.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

LIST = "packaged/ATen/native/native_functions.yaml"


class Argument(NamedTuple):
    """An argument of a schema: its type, such as ``Tensor(a!)``, and whether it is an ``out=``."""

    type: str
    name: str
    is_out: bool

    def fits(self, kind: str) -> bool:
        """Return whether a profile may note an argument of this type as ``kind``."""
        if kind == "TensorList":
            return "Tensor" in self.type and "[" in self.type
        if kind in ("Scalar", "ScalarList"):
            return "Tensor" not in self.type
        return kind == "" or ("Tensor" in self.type and "[" not in self.type)


def written(name: str, kinds: list[str]) -> tuple[list[int], list[int]] | None:
    """Return which inputs are outputs (``out=``) and which are changed in place; None if neither.

    A profile does not say which overload was called: it is the one whose arguments are as many as
    were recorded, with tensors where tensors were.

    Parameters
    ----------
    name : str
        Of the operator, such as ``"aten::mul_"``. Those of other libraries are not listed.
    kinds : list of str
        The ``"Input type"`` of the profile.
    """
    for given in _schemas().get(name, ()):
        fitting = len(given) == len(kinds) and all(
            argument.fits(kind) for argument, kind in zip(given, kinds, strict=True)
        )
        outputs = [i for i, argument in enumerate(given) if argument.is_out]
        if not fitting or any(not kinds[i] for i in outputs):
            continue
        changed = [i for i, a in enumerate(given) if "!" in a.type and not a.is_out]
        # Fused optimizers may unscale gradients in place; without a scaler they only read them.
        changed = [i for i in changed if given[i].name != "grads"]
        in_place = changed if name.endswith("_") else []
        return (outputs, in_place) if outputs or in_place else None
    return None


@cache
def _schemas() -> dict[str, list[list[Argument]]]:
    """Every overload that writes an argument, by the operator's name; none without torch."""
    torchgen = find_spec("torchgen")
    folders = torchgen.submodule_search_locations if torchgen else []
    lists = [path for folder in folders or [] if (path := Path(folder, LIST)).exists()]
    found: dict[str, list[list[Argument]]] = {}
    for path in lists[:1]:
        text = path.read_text(encoding="utf-8")
        for name, arguments in re.findall(r"^- func: (\w+)(?:\.\w+)?\((.*)\) -> ", text, re.M):
            found.setdefault(f"aten::{name}", []).append(_arguments(arguments))
    return found


def _arguments(text: str) -> list[Argument]:
    """``"Tensor self, *, Tensor(a!) out"``, taken apart."""
    found, keywords = [], False
    for part in text.split(", ") if text else []:
        if part == "*":
            keywords = True
        else:
            of, _, name = part.partition("=")[0].rpartition(" ")
            found.append(Argument(of, name, keywords and "!" in of))
    return found
