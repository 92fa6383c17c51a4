"""The page of popular advice: its table shows what was run, and a row that lies fails."""

import html
import os
import re

import pytest
import torch

from notebooks import BOOK, code_cells, read
from utils.record import ExperimentError, load_record

CELLS = {cell.id: cell for cell in code_cells(read(BOOK / "then_and_now.ipynb"))}
TOPICS = [cell.removesuffix("-run") for cell in CELLS if cell.endswith("-run")]


def test_the_table_at_the_top_shows_every_row() -> None:
    shown = re.sub(r"</?code>|`", "", CELLS["table"].outputs[0]["data"]["text/html"])
    for topic in TOPICS:
        for row in load_record(BOOK / f"records/advice_on_{topic}.json")["result"]:
            assert f'href="{row.pop("page")}.html"' in shown
            for key, text in row.items():
                text = html.escape(text.replace("`", ""), quote=False)
                assert text in shown, f"{row['says']}: {key}"


@pytest.fixture(scope="module")
def page() -> dict:
    """What the page defines before it runs its rows."""
    names = {"display": lambda *_, **__: None}
    for name, cell in CELLS.items():
        if name == "table" or name.startswith("how-"):
            exec(cell.source, names)
    return names


NEXT = "AttributeError: '_SingleProcessDataLoaderIter' object has no attribute 'next'"
RUN = {
    "says": "Ask for the next batch by `.next()`",
    "verdict": "fails",
    "page": "17_training",
    "then": {"code": "iter(DataLoader(data)).next()", "gives": NEXT, "note": "the old name"},
    "now": {"code": "next(iter(DataLoader(data))).item()", "gives": "0"},
}
REPLAYED = RUN | {
    "verdict": "costs",
    "records": {"r": "plans_by_shape"},
    "holds": "r['on'][0] > r['off'][0]",
    "then": {"code": "cudnn.benchmark = True", "measured": "{r['on'][0]:,.0f} ms"},
}


def test_rows_that_tell_the_truth(page) -> None:
    assert list(page["ADVICE"]) == TOPICS
    run, replayed = page["tried"]([RUN, REPLAYED])
    plans = load_record(BOOK / "records/plans_by_shape.json")["result"]
    assert (run["happens"], run["source"], run["gives"]) == (f"{NEXT}: the old name", "", "0")
    assert replayed["happens"] == f"{plans['on'][0]:,.0f} ms"
    assert replayed["source"] == "plans_by_shape, H200"


OLD = "torch.cuda.amp.GradScaler()\ntorch.zeros(1, dtype=int).item()"
CODE = "iter(DataLoader(data)).next()"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"pgae": "17_training"}, "an unknown field 'pgae'"),
        ({"now": {"gives": "0"}}, "no field 'code'"),
        ({"now": {"code": "0", "givse": "0"}}, "an unknown field 'givse'"),
        ({"now": {"code": "0", "gives": "0", "read": "0"}}, "has not one of"),
        ({"then": {"code": CODE, "read": "it is old"}}, "read, and no source"),
        ({"page": "98_nowhere"}, "there is no page '98_nowhere'"),
        ({"verdict": "worse"}, "the verdict 'worse' is none of"),
        ({"verdict": "warns"}, "the verdict is 'warns', and the code fails"),
        ({"verdict": "wrong"}, "the verdict is 'wrong', and the code fails"),
        ({"then": {"code": CODE, "gives": "TypeError"}}, "gives .*AttributeError"),
        ({"now": {"code": "10 + 0", "gives": "0"}}, r"gives \['10'\]"),
        ({"now": {"code": OLD, "gives": "0"}}, "is old advice, too"),
        ({"records": {"r": "plans_by_shape"}}, "nothing that holds"),
        (REPLAYED | {"holds": "r['on'][0] < r['off'][0]"}, "not r"),
        (REPLAYED | {"records": {"r": "no_such_record"}}, r"no_such_record\.json is missing"),
        (REPLAYED | {"now": {"code": "0", "measured": "{s}"}}, "name 's' is not defined"),
    ],
)
def test_a_row_that_is_wrong_or_lies_is_named(page, change, message) -> None:
    with pytest.raises(ExperimentError, match=f"{message}(?s:.*){re.escape(RUN['says'])}"):
        page["tried"]([RUN | change])


def test_a_row_leaves_nothing_behind(page, tmp_path, monkeypatch) -> None:
    def state():
        switches = torch.get_default_dtype(), torch.get_float32_matmul_precision()
        return switches, dict(os.environ), os.listdir(tmp_path)

    monkeypatch.chdir(tmp_path)
    before = state()
    code = """
torch.set_float32_matmul_precision('high')
os.environ['LEFT_BEHIND'] = '1'
torch.save(model, 'left_behind.pt')
torch.set_default_tensor_type(torch.DoubleTensor)"""
    then = {"code": code, "gives": "deprecated as of PyTorch 2.1"}
    now = {"code": "torch.get_default_dtype()", "gives": "torch.float32"}
    (found,) = page["tried"]([RUN | {"verdict": "warns", "then": then, "now": now}])
    assert found["gives"] == "torch.float32"
    assert state() == before
