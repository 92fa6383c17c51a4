"""The page of popular advice: its table shows what was run, and a row that lies fails."""

import html
import re

import pytest

from notebooks import BOOK, code_cells, read
from utils.record import ExperimentError, load_record

PAGE = read(BOOK / "then_and_now.ipynb")
CELLS = {cell.id: cell for cell in code_cells(PAGE)}
TOPICS = [cell.removesuffix("-run") for cell in CELLS if cell.endswith("-run")]
ROWS = {topic: load_record(BOOK / f"records/advice_on_{topic}.json")["result"] for topic in TOPICS}
BLOCKS = [
    block
    for cell in CELLS.values()
    for text in re.findall(r'^[A-Z_\d]+ = r?"""\n(# .*?)"""', cell.source, re.DOTALL | re.MULTILINE)
    for block in text.strip().split("\n\n")
]
VERDICTS = {"fails", "warns", "wrong", "costs", "not enough", "no effect"}


def test_there_are_many_pieces_of_advice_and_some_on_each_topic() -> None:
    assert sum(map(len, ROWS.values())) == len(BLOCKS) >= 165
    assert min(map(len, ROWS.values())) >= 5


def test_the_table_at_the_top_shows_every_row() -> None:
    shown = re.sub(r"</?code>|`", "", CELLS["table"].outputs[0]["data"]["text/html"])
    for rows in ROWS.values():
        for row in rows:
            for key in ("says", "verdict", "then", "happens", "now", "gives"):
                text = html.escape(row[key].replace("`", ""), quote=False)
                assert text in shown.replace("`", ""), f"{row['says']}: {key}"
            assert row["source"] in shown
            assert f'href="{row["page"]}.html"' in shown


def test_a_row_was_run_or_replayed_or_says_where_it_was_read() -> None:
    for block in BLOCKS:
        says, *lines = block.splitlines()
        verdict = says.split(" | ")[1]
        assert verdict in VERDICTS, says
        marks = [line[0] for line in lines]
        assert marks.count("=") + marks.count("%") == 2 and {"-", "+"} <= set(marks), says
        then = lines[: next(i for i, line in enumerate(lines) if line[0] == "+")]
        if any(line[0] == "%" for line in then):
            assert any(line.startswith("@ https://") for line in then), says
        if any("{" in line for line in lines if line[0] == "="):
            assert re.search(r"^@ [a-z_\d ]+ \? ", block, re.MULTILINE), f"{says}: no condition"


@pytest.mark.parametrize(
    "word",
    [
        *("empty_cache", "Variable", "volatile", ".data", "FloatTensor", "set_default_tensor_type"),
        *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "cudatoolkit", "is_available", "set_device"),
        *("prefetch_factor", "pin_memory", "non_blocking", "num_workers", "worker_init_fn"),
        *("cuda.amp.autocast", "GradScaler", "half()", "allow_tf32", "apex", "clip_grad_norm"),
        *("cudnn.benchmark", "cudnn.deterministic", "manual_seed_all", ".item()", "time.time"),
        *("jit.script", "jit.trace", "sdp_kernel", "cuda.graph", "capturable"),
        *("DataParallel", "distributed.launch", "--local_rank", "mp.spawn", "shuffle=True"),
        *("use_cuda", "cuda_time_total", "nvprof", "TensorBoard", "bottleneck", "utilization"),
        *("weights_only", "strict=False", "map_location", "set_to_none", "use_reentrant"),
        *("max_memory_allocated", "memory_summary", "inplace=True"),
        *("nightly", "nvidia/cuda", "rocm", "torch.cuda.utilization", "dmon"),
        *("jit.save", "torch.export", "onnx", "TorchServe", "AOTInductor", "one by one"),
        *("quantize_dynamic", "prepare_qat", "torchao", "int8", "int4", "outlier"),
        *("fully_shard", "FullyShardedDataParallel"),
        *("grouped_mm", "mixture of experts", "is_causal", "perplexity", "50,257", "held out"),
    ],
)
def test_advice_that_many_have_copied_is_there(word) -> None:
    assert any(word in block for block in BLOCKS), f"no row is about {word}"


@pytest.fixture(scope="module")
def row():
    """The function of the page that runs a row."""
    names = {}
    for name in ("how-a", "how-given", "how-b", "how-c", "how-d"):
        exec(CELLS[name].source, names)
    return names["row"]


GOOD = """\
# Ask for the next batch by `.next()` | fails | 17
- iter(DataLoader(data)).next()
= AttributeError: '_SingleProcessDataLoaderIter' object has no attribute 'next'
+ next(iter(DataLoader(data))).item()
= 0 ; the first"""
REPLAYED = """\
# Switch it on | costs | 42
@ plans_by_shape ? r['on'][0] > r['off'][0]
- torch.backends.cudnn.benchmark = True
= {r['on'][0]:,.0f} ms
+ torch.backends.cudnn.benchmark = False
= {r['off'][0]:,.0f} ms"""


def test_a_row_that_tells_the_truth(row) -> None:
    found = row(GOOD)
    assert (found["verdict"], found["page"], found["source"]) == ("fails", "17_training", "")
    assert found["happens"].startswith("AttributeError") and found["gives"] == "0: the first"
    found, plans = row(REPLAYED), load_record(BOOK / "records/plans_by_shape.json")["result"]
    assert found["happens"] == f"{plans['on'][0]:,.0f} ms"
    assert found["source"] == "plans_by_shape, H200"


@pytest.mark.parametrize(
    "block, right, wrong",
    [
        (GOOD, "= AttributeError", "= TypeError"),
        (GOOD, "| fails |", "| warns |"),
        (GOOD, "| fails |", "| wrong |"),
        (GOOD, "= 0 ;", "= 1 ;"),
        (GOOD, "next(iter(DataLoader(data))).item()", "10 + 0"),
        (
            GOOD,
            "+ next(iter(DataLoader(data)))",
            "+ torch.cuda.amp.GradScaler()\n+ torch.zeros(1, dtype=int)",
        ),
        (REPLAYED, "r['on'][0] > r['off'][0]", "r['on'][0] < r['off'][0]"),
    ],
)
def test_a_row_that_lies_fails(row, block, right, wrong) -> None:
    assert right in block
    row(block)
    with pytest.raises(AssertionError):
        row(block.replace(right, wrong))


def test_an_unknown_record_or_chapter_fails(row) -> None:
    with pytest.raises(ExperimentError, match=r"no_such_record\.json is missing"):
        row(REPLAYED.replace("plans_by_shape", "no_such_record"))
    with pytest.raises(ValueError, match="values to unpack"):
        row(GOOD.replace("| 17", "| 98"))


def test_a_row_leaves_nothing_behind(row, tmp_path, monkeypatch) -> None:
    import os

    import torch

    monkeypatch.chdir(tmp_path)
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision(), dict(os.environ)
    found = row(
        "# A row that changes much | warns | 16\n"
        "- torch.set_float32_matmul_precision('high')\n"
        "- os.environ['LEFT_BEHIND'] = '1'\n"
        "- torch.save(model, 'left_behind.pt')\n"
        "- torch.set_default_tensor_type(torch.DoubleTensor)\n"
        "= deprecated as of PyTorch 2.1\n"
        "+ torch.get_default_dtype()\n"
        "= torch.float32"
    )
    assert found["gives"] == "torch.float32"
    assert list(tmp_path.iterdir()) == []
    assert before == (
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        dict(os.environ),
    )
