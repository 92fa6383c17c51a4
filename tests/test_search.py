"""The search of the built pages: what it finds, what it shows, and what it does to a page.

FIRST and AMONG_THREE say which page a reader with that query needs, judged from the pages' titles
and headings. Where several pages are named, each of them answers the query.
"""

import functools
import hashlib
import http.server
import importlib.util
import itertools
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document

from access import faults
from pages import LOCAL

ROOT = Path(__file__).resolve().parent.parent

SPEC = importlib.util.spec_from_file_location(
    "book_search", ROOT / "tools" / "search" / "book_search.py"
)
book_search = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(book_search)
VENDORED = ROOT / "book" / "_static" / "vendor" / "minisearch"

# --- queries, and the page that a reader needs ---------------------------------------------------

FIRST = [
    ("out of memory", "23_out_of_memory"),
    ("OOM", "23_out_of_memory"),
    ("CUDA out of memory. Tried to allocate", "23_out_of_memory"),
    ("memory", "21_memory"),
    ("pinned", "15_transfers"),
    ("pin_memory", "15_transfers"),
    ("non_blocking", "15_transfers"),
    ("sync", "63_waiting"),
    ("synchronize", "13_timing 63_waiting"),
    ("GradScaler", "32_amp"),
    ("AMP", "32_amp"),
    ("mixed precision", "32_amp"),
    ("bf16 vs fp16", "31_formats"),
    ("MNIST", "00_quickstart 17_training"),
    ("train MNIST on GPU", "00_quickstart 17_training"),
    ("Tensor Cores", "31_formats 12_gpus which_gpu"),
    ("gradient checkpointing", "24_fitting"),
    ("activation checkpointing", "24_fitting"),
    ("device mismatch", "14_tensors"),
    (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
        "and cpu!",
        "14_tensors",
    ),
    ("environment setup", "11_detection"),
    ("conda", "11_detection"),
    ("install cuda", "11_detection"),
    ("torch.cuda.is_available false", "11_detection"),
    ("CUDA error: no kernel image is available for execution on the device", "11_detection"),
    ("CUDA_VISIBLE_DEVICES", "11_detection"),
    ("Cannot re-initialize CUDA in forked subprocess", "11_detection"),
    ("nvidia-smi memory not freed", "22_allocator 21_memory 23_out_of_memory"),
    ("empty_cache", "23_out_of_memory 22_allocator"),
    ("memory leak", "22_allocator"),
    ("memory snapshot", "22_allocator"),
    ("fragmentation", "22_allocator"),
    ("FSDP", "24_fitting"),
    ("LoRA", "24_fitting"),
    ("ROCm", "which_gpu 16_models"),
    ("which GPU to buy", "which_gpu"),
    ("reproducible", "18_repeatable"),
    ("seed", "18_repeatable"),
    ("different results each run", "18_repeatable"),
    ("resume training", "19_checkpoints"),
    ("save and load model", "19_checkpoints"),
    ("module. prefix", "51_data_parallel"),
    (
        'Missing key(s) in state_dict: "module.conv1.weight"',
        "51_data_parallel 19_checkpoints troubleshooting",
    ),
    ("find_unused_parameters", "53_scaling 52_ddp"),
    ("DDP", "52_ddp 51_data_parallel"),
    ("multi gpu", "51_data_parallel 52_ddp 53_scaling"),
    ("NCCL timeout", "52_ddp"),
    ("training hangs", "52_ddp"),
    ("address already in use", "52_ddp"),
    ("num_workers", "41_data"),
    ("GPU utilization low", "63_waiting 62_bottlenecks"),
    ("GPU idle", "62_bottlenecks 61_profiler 63_waiting"),
    ("why is training slow", "62_bottlenecks"),
    ("loss nan", "31_formats 32_amp"),
    ("cudnn.benchmark", "42_kernels"),
    ("profiler", "61_profiler"),
    ("nsight", "61_profiler"),
    (".to(device)", "16_models"),
    (".item()", "63_waiting"),
    ("measure time on gpu", "13_timing"),
    ("cuda events", "13_timing"),
    ("prefetch to gpu", "15_transfers"),
    ("cuda stream", "44_graphs"),
    ("roofline", "12_gpus 62_bottlenecks"),
    ("gpu slower than cpu", "12_gpus"),
    ("checkpoint", "19_checkpoints"),
    ("checkponit", "19_checkpoints"),
    ("transfers", "15_transfers"),
    ("synchronisation", "63_waiting"),
    ("memroy fragmentaton", "22_allocator"),
    ("determinstic", "18_repeatable"),
    ("mixedprecision", "32_amp"),
    ("torchrun", "52_ddp"),
    ("utils.bounds", "62_bottlenecks classifier_trials"),
    ("MFU", "43_compile 62_bottlenecks"),
    ("如何检测CUDA", "11_detection"),
    ("多GPU训练", "51_data_parallel 52_ddp 53_scaling"),
    ("混合精度训练", "32_amp"),
    ("显存不足", "23_out_of_memory"),
    ("显存管理", "21_memory 22_allocator"),
    ("性能分析", "61_profiler"),
    ("数据加载", "41_data"),
    ("分布式训练", "52_ddp 51_data_parallel"),
    ("training stuck at first epoch multi gpu", "52_ddp"),
    ("model.to(device) not working", "16_models"),
    ("how to use two gpus", "51_data_parallel 52_ddp 53_scaling"),
    ("batch norm ddp", "52_ddp"),
    ("gradient clipping amp", "32_amp"),
    ("unscale_", "32_amp"),
    ("autocast", "32_amp"),
    ("float64 slow", "14_tensors"),
    ("numpy to gpu", "14_tensors"),
    ("cpu().numpy()", "14_tensors"),
    ("do_bench", "13_timing"),
    ("torch.utils.benchmark", "13_timing"),
    ("shared memory", "12_gpus 41_data"),
    ("GPU architecture", "12_gpus"),
    ("compute capability", "11_detection 31_formats"),
    ("T4", "31_formats which_gpu"),
    ("MIG", "which_gpu"),
    ("price per hour", "which_gpu"),
    ("apple m1 mps", "which_gpu 16_models"),
    ("who is using my gpu", "11_detection"),
    ("driver version", "11_detection"),
    ("nvcc", "11_detection"),
    ("map_location", "19_checkpoints"),
    ("state_dict", "19_checkpoints 16_models"),
    ("learning rate multi gpu", "52_ddp"),
    ("DistributedSampler", "52_ddp"),
    ("set_epoch", "52_ddp"),
    ("all reduce", "51_data_parallel"),
    ("ring allreduce bandwidth", "51_data_parallel"),
    ("weak scaling", "53_scaling"),
    ("bucket_cap_mb", "53_scaling"),
    ("no_sync", "52_ddp"),
    ("kernel", "42_kernels 12_gpus"),
    ("activation memory", "21_memory 24_fitting"),
    ("peak memory", "21_memory"),
    ("predict memory without gpu", "21_memory"),
    ("retry after OOM", "23_out_of_memory"),
    ("largest batch size", "23_out_of_memory"),
    ("attention memory long sequences", "24_fitting"),
    ("cross entropy large vocabulary", "24_fitting"),
    ("optimizer state memory", "24_fitting 21_memory 16_models"),
    ("underflow", "31_formats 32_amp"),
    ("fp16 loss nan", "32_amp 31_formats"),
    ("record_stream", "15_transfers"),
    ("DataLoader slow", "41_data"),
    ("worker_init_fn", "18_repeatable"),
    ("nvidia-smi 100% utilization", "63_waiting"),
    ("nvtx", "61_profiler"),
    ("trace", "61_profiler"),
    ("memory bound or compute bound", "62_bottlenecks 12_gpus"),
    ("contributing", "contributing"),
    ("how were these numbers measured", "how_we_measure"),
    ("训练速度慢怎么办", "62_bottlenecks"),
    ("GPU利用率低", "63_waiting"),
    ("断点续训", "19_checkpoints"),
    ("锁页内存", "15_transfers"),
    ("PyTorch环境搭建", "11_detection"),
    ("多卡训练 卡死", "52_ddp"),
    ("张量在GPU和CPU之间移动", "14_tensors 15_transfers"),
    ("模型迁移到GPU", "16_models"),
    ("CUDA流", "44_graphs"),
    ("显卡推荐", "which_gpu"),
    ("FP16和BF16的区别", "31_formats"),
    ("cuda graph", "44_graphs"),
    ("operation not permitted when stream is capturing", "44_graphs"),
    ("torch.compile", "43_compile"),
    ("graph break", "43_compile"),
    ("recompile", "43_compile"),
    ("channels_last", "42_kernels"),
    ("FlexAttention", "42_kernels"),
    ("prefetch_factor", "41_data"),
    ("decode jpeg on gpu", "41_data"),
    ("编译", "43_compile"),
    ("DataParallel 和 DistributedDataParallel 区别", "51_data_parallel"),
    ("混合精度", "32_amp"),
    ("多卡训练", "51_data_parallel 52_ddp 53_scaling"),
    ("数据加载慢", "41_data"),
    ("显存泄漏", "22_allocator"),
    ("梯度检查点", "24_fitting"),
    ("异步传输", "15_transfers"),
    ("编译加速", "43_compile"),
    ("CUDA 图", "44_graphs"),
    ("CUDA图", "44_graphs"),
    ("单机多卡", "51_data_parallel 52_ddp"),
    ("学习率", "52_ddp"),
    ("随机种子", "18_repeatable"),
    ("保存模型", "19_checkpoints"),
    ("显存碎片", "22_allocator"),
    ("GPU计时", "13_timing"),
    ("清空显存", "23_out_of_memory 22_allocator"),
    ("释放显存", "23_out_of_memory 22_allocator"),
    ("指定显卡", "11_detection"),
    ("半精度训练", "31_formats 32_amp"),
    ("梯度缩放", "32_amp"),
    ("数据预取", "15_transfers 41_data"),
    ("算子融合", "43_compile 42_kernels"),
    ("训练慢", "62_bottlenecks"),
    ("训练速度太慢怎么办", "62_bottlenecks"),
    ("准确率低", "17_training"),
    ("结果不可复现", "18_repeatable"),
    ("DDP卡死", "52_ddp"),
    ("NCCL超时", "52_ddp"),
    ("共享内存不足", "41_data"),
    ("num_workers设置多少", "41_data"),
    ("选显卡", "which_gpu"),
    ("驱动版本不匹配", "11_detection"),
    ("显存占用估算", "21_memory"),
    ("最大batch size", "23_out_of_memory"),
    ("梯度裁剪", "32_amp"),
    ("损失变成NaN", "31_formats 32_amp"),
    ("loss为nan", "31_formats 32_amp"),
    ("动态图 断图", "43_compile"),
    ("重新编译", "43_compile"),
    ("大模型显存不够", "24_fitting 23_out_of_memory"),
    ("长序列注意力", "24_fitting 42_kernels"),
    ("图片解码慢", "41_data"),
    ("卡间通信", "51_data_parallel 53_scaling 15_transfers"),
    ("显存优化", "24_fitting 21_memory"),
    ("内存泄漏", "22_allocator"),
    ("模型评估 eval", "17_training"),
    ("设备不一致", "14_tensors"),
    ("显卡架构不支持", "11_detection troubleshooting"),
    ("内核启动开销", "42_kernels 44_graphs 12_gpus"),
    ("手写数字识别 GPU", "00_quickstart 17_training"),
    ("流同步", "44_graphs 63_waiting 15_transfers"),
    ("算子", "42_kernels"),
    ("内核", "42_kernels 12_gpus"),
    ("中文", "zh"),
    ("术语", "zh"),
    ("术语对照表", "zh"),
    ("中英对照", "zh"),
    ("共享内存", "12_gpus 41_data"),
    ("训练结果不一样", "18_repeatable"),
    ("显存随训练增长", "22_allocator"),
    ("怎么选GPU", "which_gpu"),
    ("如何测量运行时间", "13_timing"),
    ("模型放不下", "24_fitting"),
    ("卡死", "52_ddp"),
    ("大模型推理慢", "44_graphs"),
    ("没有NVLink", "53_scaling"),
    ("卡间通信慢", "53_scaling 51_data_parallel"),
    ("苹果芯片", "which_gpu 16_models"),
    ("标签越界", "troubleshooting"),
    ("自定义算子", "45_triton"),
    ("超参数", "71_speedrun"),
    ("显卡被占用", "11_detection"),
    ("子进程", "11_detection"),
    ("旧教程", "then_and_now"),
    ("显存带宽", "12_gpus 62_bottlenecks"),
]
AMONG_THREE = [
    ("gradient accumulation", "24_fitting 32_amp 52_ddp"),
    ("Colab", "11_detection"),
    ("DataLoader worker is killed by signal: Bus error", "17_training 18_repeatable 15_transfers"),
    ("batch size", "23_out_of_memory 52_ddp"),
    ("no_grad", "23_out_of_memory 21_memory"),
    ("梯度累积", "24_fitting 32_amp 52_ddp"),
    ("flash attention", "42_kernels"),
    ("batch size per graph", "44_graphs"),
    ("tensor.item slow", "63_waiting"),
    ("print loss every step slow", "63_waiting"),
    ("metrics accuracy slow", "63_waiting"),
    ("warm up first iteration slow", "13_timing"),
    ("kernel launch overhead", "44_graphs 42_kernels"),
    ("H100 vs A100", "which_gpu 31_formats"),
    ("kill zombie process gpu memory", "11_detection 22_allocator 21_memory 23_out_of_memory"),
    ("save optimizer state", "19_checkpoints"),
    ("utils.timing.measure", "api"),
    ("measure", "13_timing how_we_measure"),
]
# Typed for the pages that came last, and pasted from a terminal.
LATER = [
    ("triton", "45_triton"),
    ("triton tutorial softmax", "45_triton"),
    ("write custom cuda kernel python", "45_triton"),
    ("tl.load mask other", "45_triton"),
    ("num_warps num_stages", "45_triton"),
    ("BLOCK_SIZE power of 2", "45_triton"),
    ("layernorm backward", "45_triton"),
    ("opcheck", "45_triton"),
    ("TRITON_INTERPRET=1", "45_triton"),
    ("tritn kernal", "45_triton"),
    ("自定义算子", "45_triton"),
    ("speed run", "71_speedrun"),
    ("fastest mnist", "71_speedrun 00_quickstart"),
    ("mnist 99% accuracy", "71_speedrun"),
    ("ablation", "71_speedrun"),
    ("hyperparameter tuning", "71_speedrun"),
    ("最快训练MNIST", "71_speedrun 00_quickstart"),
    ("超参数调优", "71_speedrun"),
    ("ledger", "73_ledger"),
    ("all predictions", "73_ledger"),
    ("worst misses", "73_ledger"),
    ("how accurate are the predictions", "73_ledger"),
    ("common pytorch errors", "troubleshooting"),
    ("troubleshoot", "troubleshooting"),
    ("维度不匹配", "troubleshooting"),
    ("outdated advice", "then_and_now"),
    ("old tutorial code", "then_and_now"),
    ("过时的写法", "then_and_now zh"),
    ("cheatsheet", "cheat_sheet"),
    ("glossary", "glossary"),
    ("sdpa", "42_kernels"),
    ("not enough gpu ram", "23_out_of_memory 24_fitting"),
    ("训练中断怎么恢复", "19_checkpoints"),
    ("8 gpus slower than 1", "51_data_parallel 53_scaling"),
    ("batchsize too big", "23_out_of_memory"),
    ("model.eval vs no_grad", "17_training"),
    ("显存越用越多", "22_allocator"),
    ("多卡比单卡慢", "51_data_parallel 53_scaling"),
    ("H200", "which_gpu 31_formats"),
    (
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have "
        "an NVIDIA GPU and installed a driver from "
        "http://www.nvidia.com/Download/index.aspx",
        "troubleshooting 11_detection",
    ),
    (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x9216 and 1024x128)",
        "troubleshooting",
    ),
    (
        "RuntimeError: Given groups=1, weight of size [32, 3, 3, 3], expected input[64, "
        "1, 28, 28] to have 3 channels, but got 1 channels instead",
        "troubleshooting",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
        "has a total capacity of 23.65 GiB of which 1.12 GiB is free. Including non-"
        "PyTorch memory, this process has 22.50 GiB memory in use.",
        "23_out_of_memory",
    ),
    (
        '  File "train.py", line 42, in <module>\n    loss.backward()\nRuntimeError: '
        "element 0 of tensors does not require grad and does not have a grad_fn",
        "troubleshooting",
    ),
    (
        "RuntimeError: one of the variables needed for gradient computation has been "
        "modified by an inplace operation: [torch.cuda.FloatTensor [64, 10]], which is "
        "output 0 of ReluBackward0, is at version 1; expected version 0 instead.",
        "troubleshooting 42_kernels",
    ),
    (
        "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to"
        " copy the tensor to host memory first.",
        "14_tensors troubleshooting",
    ),
    (
        "RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False. If you are running on a CPU-only machine, "
        "please use torch.load with map_location=torch.device('cpu')",
        "19_checkpoints troubleshooting",
    ),
    (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for "
        "fc.weight: copying a param with shape torch.Size([1000, 512]) from checkpoint, "
        "the shape in current model is torch.Size([10, 512]).",
        "troubleshooting 19_checkpoints",
    ),
    (
        "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        "52_ddp troubleshooting",
    ),
    (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: "
        "environment variable RANK expected, but not set",
        "52_ddp troubleshooting",
    ),
    (
        "RuntimeError: The server socket has failed to listen on any local network "
        "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
        "52_ddp troubleshooting",
    ),
    (
        "RuntimeError: expected scalar type Long but found Float",
        "troubleshooting",
    ),
    (
        "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might "
        "be asynchronously reported at some other API call, so the stacktrace below might"
        " be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "troubleshooting",
    ),
    (
        "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "troubleshooting 11_detection",
    ),
    (
        "AttributeError: Can't get attribute 'train' on <module '__main__' (built-in)>",
        "troubleshooting 52_ddp",
    ),
]
GUIDED = [  # the guide is among the first five, but not the first
    "显存不足",
    "数据加载慢",
    "显存泄漏",
    "梯度检查点",
    "异步传输",
    "CUDA图",
    "学习率",
    "保存模型",
    "断点续训",
    "显存碎片",
    "GPU利用率低",
    "GPU计时",
    "清空显存",
    "指定显卡",
    "半精度训练",
    "梯度缩放",
    "数据预取",
    "训练慢",
    "准确率低",
    "结果不可复现",
    "NCCL超时",
    "驱动版本不匹配",
    "显存占用估算",
    "最大batch",
    "梯度裁剪",
    "loss变成NaN",
    "重新编译",
    "单卡放不下",
    "怎么选GPU",
    "推理加速",
    "没有NVLink",
    "标签越界",
]
MISSPELT = {  # what is typed: what is meant
    "memroy": "memory",
    "chekpoint": "checkpoint",
    "syncronize": "synchronize",
    "autocats": "autocast",
    "fragmentaion": "fragmentation",
    "profilr": "profiler",
    "reproducable": "reproducible",
    "GradScalar": "GradScaler",
    "dataloder": "dataloader",
    "determinisitc": "deterministic",
    "outofmemory": "out of memory",
    "mixedprecision": "mixed precision",
}
HARMLESS = [
    "",
    "   ",
    "%$#@!()[]{}*+?.\\^|/",
    "<script>window.injected = 1</script>",
    "<img src=x onerror='window.injected = 1'>",
    "\"'><b onmouseover=window.injected=1>x",
    "__proto__ constructor hasOwnProperty toString",
    "\u0000\ufffd\u202e",
    "😀 🤖",
    "(((((((((((((((((((((((a+)+)+)+)+",
    "a" * 10_000,
    "memory " * 1_500,
    "显存" * 5_000,
]


@pytest.fixture(scope="module")
def searched(open_page) -> SimpleNamespace:
    """The page search.html with everything loaded; ``find`` gives the pages for a query."""
    visit = open_page("search", query="?q=memory")
    visit.page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    visit.page.evaluate("async () => { window.engine = await bookSearch.load(); }")
    queries = [*dict(FIRST + LATER + AMONG_THREE), *GUIDED, *MISSPELT, *MISSPELT.values()]
    visit.answers = visit.page.evaluate(
        "queries => queries.map(query => [query, engine.search(query).results.map(p => p.url)])",
        queries,
    )
    visit.answers = {query: [Path(url).stem for url in urls] for query, urls in visit.answers}

    def find(query: str) -> list[dict]:
        return visit.page.evaluate("query => engine.search(query).results", query)

    visit.find = find
    visit.names = lambda query: [Path(page["url"]).stem for page in find(query)]
    visit.run = lambda script, *values: visit.page.evaluate(
        f"values => {{ const text = bookSearch.text; return ({script})(...values); }}", list(values)
    )
    return visit


@pytest.mark.parametrize(("query", "wanted"), FIRST + LATER)
def test_page_that_comes_first(searched, query, wanted) -> None:
    found = searched.answers[query]
    assert found[:1] and found[0] in wanted.split(), found[:5]


@pytest.mark.parametrize(("query", "wanted"), AMONG_THREE)
def test_page_among_the_first_three(searched, query, wanted) -> None:
    found = searched.answers[query]
    assert set(found[:3]) & set(wanted.split()), found[:5]


@pytest.mark.parametrize("query", GUIDED)
def test_guide_in_chinese_stands_beside_the_chapter(searched, query) -> None:
    assert "zh" in searched.answers[query][1:5], searched.answers[query][:5]


def test_queries_without_chinese_do_not_lead_to_the_guide(searched) -> None:
    plain = {query: found for query, found in searched.answers.items() if query.isascii()}
    assert [query for query, found in plain.items() if "zh" in found[:3]] == []


@pytest.mark.parametrize(("query", "of_the_guide"), [("zebra 为什么慢", 0.5), ("zebra", 1)])
def test_what_only_the_guide_says_does_not_hide_the_chapter(searched, query, of_the_guide) -> None:
    chapter = {"id": "a", "heading": "A page", "prose": "Here a zebra is named."}
    guide = {"id": "a", "heading": "导读", "prose": "zebra 有什么区别？zebra 为什么慢？"}
    pages = [
        {"url": f"{name}.html", "title": found["heading"], "weight": weight, "sections": [found]}
        for name, found, weight in [("zh", guide, of_the_guide), ("chapter", chapter, 1)]
    ]
    found = searched.page.evaluate(
        """async ([pages, query]) => {
            const data = { pages, synonyms: [], asides: {} };
            return (await bookSearch.create(MiniSearch, data)).search(query).results;
        }""",
        [pages, query],
    )
    assert [page["url"] for page in found] == ["chapter.html", "zh.html"]


@pytest.mark.parametrize(("typed", "meant"), MISSPELT.items())
def test_slip_of_the_keys_finds_the_same_page(searched, typed, meant) -> None:
    assert searched.answers[typed][0] == searched.answers[meant][0]


def test_plural_and_endings_find_the_same_page(searched) -> None:
    for words in ["transfer transfers transferring", "synchronize synchronise synchronised"]:
        assert len({searched.names(word)[0] for word in words.split()}) == 1, words


@pytest.mark.parametrize("query", ["pinned memory", "gradient checkpointing", "reproducible"])
def test_page_is_found_before_the_query_is_typed(searched, query) -> None:
    assert searched.names(query[:-3])[0] == searched.names(query)[0]


def test_title_over_heading_over_prose_over_code_over_api(searched) -> None:
    sections = {
        "title": [{"id": "a", "heading": "Zebra: the page"}],
        "heading": [{"id": "a", "heading": "A page"}, {"id": "b", "heading": "Zebra"}],
        "prose": [{"id": "a", "heading": "A page", "prose": "Here a zebra is named."}],
        "code": [{"id": "a", "heading": "A page", "code": "zebra()"}],
        "api": [
            {"id": "a", "heading": "A page"},
            {"id": "b", "heading": "f", "prose": "A zebra.", "api": "utils.f"},
        ],
    }
    for better, worse in itertools.pairwise(sections):
        pages = [
            {"url": f"{name}.html", "title": found[0]["heading"], "weight": 1, "sections": found}
            for name, found in [(worse, sections[worse]), (better, sections[better])]
        ]
        found = searched.page.evaluate(
            """async pages => {
                const data = { pages, synonyms: [], asides: {} };
                return (await bookSearch.create(MiniSearch, data)).search("zebra").results;
            }""",
            pages,
        )
        assert [Path(result["url"]).stem for result in found][:1] == [better]


MESSAGE = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x784 and 9216x10)"
AT = 'File "/usr/lib/python3/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl'
ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1 Compile with "
    "`TORCH_USE_CUDA_DSA` to enable device-side assertions."
)


@pytest.mark.parametrize(
    ("pasted", "message"),
    [
        (
            f"Traceback (most recent call last): {f'{AT} return forward(*args) ' * 9}{MESSAGE}",
            MESSAGE,
        ),
        (
            f"CUDA error: invalid device ordinal {ASYNCHRONOUS}",
            "CUDA error: invalid device ordinal ",
        ),
        (f"[rank3]: {MESSAGE}", MESSAGE),
        (ASYNCHRONOUS, ASYNCHRONOUS),  # there is nothing else
        (AT, AT),
    ],
    ids=["traceback", "asynchronous", "rank", "nothing else", "no error"],
)
def test_of_a_pasted_traceback_the_message_is_looked_for(searched, pasted, message) -> None:
    found, wanted = searched.find(pasted), searched.find(message)
    assert found and [page["url"] for page in found] == [page["url"] for page in wanted]
    assert found[0]["sections"][0]["anchor"] == wanted[0]["sections"][0]["anchor"]


def test_numbers_of_a_long_message_are_not_looked_for(searched) -> None:
    """But those of a short query are."""

    def numbers(query: str) -> set[str]:
        marks = [mark for page in searched.find(query) for mark in page["sections"][0]["marks"]]
        return {word for mark in marks for word in mark.split() if word.isdigit()}

    assert numbers(f"{MESSAGE} 7 8 16") == set()
    assert "99" in numbers("MNIST 99%")


# --- words, corrections, excerpts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "terms"),
    [
        ("memories", ["memori"]),
        ("DataLoader", ["dataload", "data", "loader"]),
        ("pin_memory", ["pinmemori", "pin", "memori"]),
        ("CUDA_VISIBLE_DEVICES", ["cudavisibledevic", "cuda", "visibl", "devic"]),
        ("GPUs", ["gpu"]),
        ("bf16", ["bf16"]),
        ("显存不足", ["显存", "存不", "不足"]),
        ("__", []),
    ],
)
def test_terms_of_a_word(searched, word, terms) -> None:
    found = searched.run("word => text.terms(word)", word)
    assert [term for term in found if term not in terms] == [], found
    assert found[: len(terms[:1])] == terms[:1]
    assert set(terms) <= set(found)


def test_distance_counts_a_swap_as_one(searched) -> None:
    for a, b, edits in [("memory", "memroy", 1), ("seed", "seeds", 1), ("abc", "abc", 0)]:
        assert searched.run("(a, b) => text.distance(a, b, 2)", a, b) == edits
    assert searched.run("text.distance('memory', 'profile', 2) === Infinity && (() => 1)")


def test_what_was_corrected_and_what_is_unknown_is_said(searched) -> None:
    result = searched.page.evaluate("engine.search('memroy of a xylophone')")
    assert (result["corrected"], result["unknown"]) == ("memory of a xylophone", ["xylophone"])


def test_excerpt_holds_the_words_and_is_short(searched) -> None:
    for query in ["pinned memory", "OOM", "GradScaler", "non_blocking"]:
        best = searched.find(query)[0]["sections"][0]
        shown = "".join(piece["text"] for piece in best["excerpt"])
        marked = [piece["text"] for piece in best["excerpt"] if piece["mark"]]
        assert marked or any(piece["mark"] for piece in best["headingPieces"]), query
        assert 20 < len(shown) < 200, shown


def test_excerpt_is_cut_at_words_around_the_hit(searched) -> None:
    text = "word " * 100 + "needle " + "more " * 100
    found = searched.run("t => text.cut(t, [[500, 506]])", text)
    assert [piece["text"] for piece in found if piece["mark"]] == ["needle"]
    assert found[0]["text"] == "… " and found[-1]["text"] == " …"
    assert set("".join(p["text"] for p in found).split()) == {"…", "word", "needle", "more"}


def test_result_opens_at_a_section_that_exists(site) -> None:
    script = (site / book_search.DATA).read_text(encoding="utf-8")
    for page in json.loads(script[script.index("{") : script.rindex("}") + 1])["pages"]:
        html = (site / page["url"]).read_text(encoding="utf-8")
        missing = [s["id"] for s in page["sections"] if f'id="{s["id"]}"' not in html]
        assert missing == [], page["url"]


# --- bad queries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("query", HARMLESS, ids=lambda query: query[:20])
def test_no_query_does_harm(searched, query) -> None:
    page = searched.page
    page.locator("#book-search input").fill(query)
    page.locator("#book-search form").evaluate("form => form.requestSubmit()")
    page.wait_for_function(
        "!document.querySelector('.book-search-status').textContent.includes('…')"
    )
    assert page.evaluate("window.injected") is None
    assert page.locator("#book-search :is(script, img, b)").count() == 0
    assert searched.errors == []
    if not re.search(r"\w", query):
        assert page.locator(".book-search-hit").count() == 0


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("search", "?q=%3Cimg src=x onerror=window.injected=1%3E"),
        (
            "book/contributing",
            "?mark=%3Cimg src=x onerror=window.injected=1%3E|.*|%E0%A4%A#%E0%A4%A",
        ),
    ],
)
def test_no_address_does_harm(open_page, name, query) -> None:
    visit = open_page(name, query=query)
    visit.page.wait_for_timeout(300)
    assert visit.page.evaluate("window.injected") is None
    assert visit.page.locator("img[src=x]").count() == 0
    assert visit.errors == []


def test_no_page_does_harm(open_page) -> None:
    """What pages say is shown as text."""
    evil = "zebra <img src=x onerror='window.injected = 1'>"
    section = {"id": "a", "heading": evil, "prose": evil, "code": evil}
    page = {
        "url": "a.html",
        "title": evil,
        "weight": 1,
        "sections": [section | {"heading": "Other"}, section],
    }
    shown = open_page("genindex").page
    shown.evaluate(  # what data.js says later does not change it
        "value => { Object.defineProperty(window, 'bookSearchData', { value }); }",
        {"pages": [page], "synonyms": [], "asides": {}},
    )
    shown.keyboard.press("Control+k")
    shown.keyboard.type("zebra")
    hit = shown.locator(".book-search-hit")
    hit.wait_for(timeout=60_000)
    assert hit.inner_text().count(evil) == 3
    assert shown.locator("dialog img").count() == 0
    assert shown.evaluate("window.injected") is None


def test_end_of_a_long_query_is_not_read(searched) -> None:
    query = f"pinned memory{' ' * 300}roofline"
    assert searched.names(query) == searched.names("pinned memory ")


# --- the field, and the page that a result opens -------------------------------------------------


@pytest.fixture(scope="module")
def chapter(open_page) -> SimpleNamespace:
    return open_page("book/11_detection")


def test_search_from_the_keyboard(open_page) -> None:
    """Ctrl+K, a query, an arrow, Enter: the section, with its words marked; Escape unmarks."""
    visit = open_page("genindex")
    page = visit.page
    assert [url for url in visit.requests if "minisearch" in url or url.endswith("data.js")] == []
    page.keyboard.press("Control+k")
    page.keyboard.type("pinned memory")
    page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    assert re.match(r"\d+ pages", page.locator("[role=status]").inner_text())
    page.keyboard.press("ArrowDown")
    chosen = page.evaluate("document.activeElement.textContent")
    assert "pinned memory" in chosen.lower()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.tagName") == "INPUT"
    page.keyboard.press("Enter")
    marks = page.locator("mark.book-mark")
    marks.first.wait_for(timeout=60_000)
    assert "15_transfers.html#pinned-memory" in page.url and "mark=" not in page.url
    assert "pinned memory" in {text.lower() for text in marks.all_inner_texts()}
    page.wait_for_function(  # the older theme scrolls there smoothly
        "mark => { const { top, bottom } = mark.getBoundingClientRect();"
        " return top >= 0 && bottom <= innerHeight; }",
        arg=marks.first.element_handle(),
    )
    inside = "mark => mark.closest('section').id.startsWith('pinned-memory')"
    assert marks.evaluate_all(f"marks => marks.every({inside})")
    page.keyboard.press("Escape")
    assert marks.count() == 0
    assert [url for url in visit.requests if not url.startswith(LOCAL)] == []
    assert visit.errors == []


def test_button_opens_the_dialog_and_escape_closes_it(chapter) -> None:
    page = chapter.page
    button = page.locator(".search-button__button:visible").first
    button.click()
    assert page.locator("dialog[open]").count() == 1
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert button.evaluate("button => button === document.activeElement")


def test_keyboard_leads_through_the_dialog_and_back(chapter) -> None:
    """Every stop shows that it has the focus, and is in sight; Escape gives the focus back."""
    page = chapter.page
    button = page.locator(".search-button__button:visible").first
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.type("pinned")
    page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    focus = """() => {
        const at = document.activeElement, style = getComputedStyle(at);
        const { top, bottom } = at.getBoundingClientRect();
        const shown = at.closest('dialog').getBoundingClientRect();
        return {
            name: at.name || at.ariaLabel || at.href,
            outline: style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth),
            seen: top >= shown.top && bottom <= shown.bottom,
        };
    }"""
    links = page.locator("dialog .book-search-results a")
    addresses = links.evaluate_all("links => links.map(link => link.href)")
    stops = [page.evaluate(focus)]
    for _ in addresses:
        page.keyboard.press("ArrowDown")
        stops.append(page.evaluate(focus))
    page.keyboard.press("ArrowDown")
    assert [stop["name"] for stop in stops] == ["q", *addresses]
    assert page.evaluate(focus) == stops[-1], "nothing comes after the last"
    page.locator("dialog input").focus()
    page.keyboard.press("Tab")
    stops.append(page.evaluate(focus))
    assert stops[-1]["name"] == "Close"
    assert [stop for stop in stops if stop["outline"] < 2 or not stop["seen"]] == []
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert button.evaluate("button => button === document.activeElement")


def test_open_dialog_has_no_serious_fault_of_access(open_page) -> None:
    """With results, a word that was corrected, and words marked; of dark ones, the colors."""
    page = open_page("404").page  # the shortest: axe looks at what is behind the dialog, too
    page.keyboard.press("Control+k")
    page.locator("dialog input").fill("pinned memroy")
    page.locator("dialog mark").first.wait_for(timeout=60_000)
    for width, theme in itertools.product((1280, 390), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 844})
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        found = faults(page, colors_only=theme == "dark", within="dialog[open]")
        assert found == [], (width, theme)


def test_word_in_a_fold_is_unfolded(chapter) -> None:
    """A word that stands nowhere in its section but in a fold."""
    page = chapter.page
    fold = page.locator("article section:not(:has(section)) details:has(pre)").first
    section, word = fold.evaluate(
        """fold => {
            const section = fold.closest('section');
            const copy = section.cloneNode(true);
            copy.querySelectorAll('details, section').forEach(element => element.remove());
            const outside = new Set(copy.textContent.toLowerCase().match(/\\w+/g));
            const words = fold.querySelector('pre').textContent.match(/[a-z]\\w{5,}/g);
            return [section.id, words.find(word => !outside.has(word.toLowerCase()))];
        }"""
    )
    page.goto(page.url.split("?")[0] + f"?mark={word}#{section}")
    marks = page.locator("mark.book-mark")
    marks.first.wait_for(timeout=30_000)
    assert marks.first.is_visible()


def test_results_fit_a_phone(chapter) -> None:
    page = chapter.page
    page.set_viewport_size({"width": 390, "height": 844})
    page.keyboard.press("Control+k")
    page.keyboard.type("Expected all tensors to be on the same device cudnn.benchmark")
    page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    width = "element => element.scrollWidth <= element.clientWidth"
    assert page.locator(".book-search-results").evaluate(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 1280, "height": 844})


def test_search_works_on_a_server(browser, site) -> None:
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(quiet, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/search.html?q=OOM")
        hit = page.locator(".book-search-hit").first
        hit.wait_for(timeout=60_000)
        assert "23_out_of_memory" in hit.get_attribute("href")
    finally:
        page.close()
        server.shutdown()
        server.server_close()


def test_without_javascript_search_says_so(browser, site) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto((site / "search.html").as_uri())
    assert "Search needs JavaScript" in page.locator("article").inner_text()
    context.close()


# --- what is shipped -----------------------------------------------------------------------------


def test_sphinx_own_search_is_not_shipped(site) -> None:
    assert [name for name in book_search.UNUSED if (site / name).exists()] == []
    assert "searchtools" not in (site / "book" / "index.html").read_text(encoding="utf-8")
    assert (site / book_search.DATA).stat().st_size < 1_500_000


def test_minisearch_is_the_file_of_the_registry() -> None:
    about = (VENDORED / "README.md").read_text(encoding="utf-8")
    checksum = hashlib.sha256((VENDORED / "minisearch.js").read_bytes()).hexdigest()
    assert f"`{checksum}`" in about
    assert "registry.npmjs.org/minisearch/-/minisearch-" in about
    assert "Permission is hereby granted" in (VENDORED / "LICENSE.txt").read_text(encoding="utf-8")


def test_synonyms_are_texts_and_name_no_page() -> None:
    entries = yaml.safe_load(book_search.SYNONYMS.read_text(encoding="utf-8"))
    for entry in entries:
        assert entry.keys() == {"say", "mean"}
        texts = entry["say"] + entry["mean"]
        assert all(isinstance(text, str) and text.strip() for text in texts), entry
        assert not any(re.search(r"book/|\.html|^\d\d_", text) for text in texts), entry


# --- what is indexed -----------------------------------------------------------------------------


def page_of(*content) -> nodes.document:
    page = new_document("page")
    section = nodes.section("", nodes.title("", "The title"), *content, ids=["top"])
    page += section
    return page


def test_sections_hold_their_own_text_only() -> None:
    inner = nodes.section("", nodes.title("", "Inner"), nodes.paragraph("", "Below."), ids=["in"])
    found = book_search.sections(page_of(nodes.paragraph("", "Above,\nin one line."), inner))
    assert [(s["id"], s["heading"], s["prose"]) for s in found] == [
        ("top", "The title", "Above, in one line."),
        ("in", "Inner", "Below."),
    ]


def test_folded_machinery_and_output_are_left_out() -> None:
    def cell(text, *tags):
        source = nodes.container("", nodes.literal_block(text, text), classes=["cell_input"])
        printed = nodes.literal_block("printed", "printed")
        output = nodes.container("", printed, classes=["cell_output"])
        return nodes.container("", source, output, classes=["cell", *tags])

    page = page_of(cell("x = 1"), cell("import this", "tag_hide-input"), nodes.comment("", "no"))
    (found,) = book_search.sections(page)
    assert (found["code"], found["prose"]) == ("x = 1", "")


def test_formulas_and_tables_read_as_text() -> None:
    formula = nodes.paragraph("", "", nodes.Text("about "), nodes.math("", r"\frac{1}{2}"))
    cells = [nodes.entry("", nodes.paragraph("", text)) for text in ("one", "two")]
    row = nodes.row("", *cells)
    (found,) = book_search.sections(page_of(formula, nodes.tbody("", row)))
    assert found["prose"] == "about …\none · two"


def test_first_pattern_that_fits_gives_a_page_its_weight() -> None:
    weights = {"book/trials_a": 0.7, "book/trials_*": 0.5}
    names = ["book/trials_a", "book/trials_b", "book/other"]
    assert [book_search.weight(name, weights) for name in names] == [0.7, 0.5, 1.0]


def test_same_pages_give_the_same_index() -> None:
    def app(docnames):
        env = SimpleNamespace(
            found_docs=docnames,
            toctree_includes={"index": ["b", "a"]},
            get_doctree=lambda name: page_of(nodes.paragraph("", f"Of {name}.")),
        )
        builder = SimpleNamespace(get_target_uri=lambda name: f"{name}.html")
        return SimpleNamespace(env=env, builder=builder, config=SimpleNamespace(root_doc="index"))

    one, other = (
        book_search.data(app(names)) for names in (["index", "a", "b"], {"b", "a", "index"})
    )
    assert one == other
    assert re.findall(r'"url":"(\w+)\.html"', one) == ["index", "b", "a"]
