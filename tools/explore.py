"""What calculators on a page are made of, from what the book has once.

The formulas of utils/cost.py become JavaScript; datasheets, measured peaks and counted answers come
from book/gpus.json, the records and stored outputs. Nothing of it is written down a second time.
"""

import ast
import inspect
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from utils import cost
from utils.bounds import diagnose
from utils.gpus import GPUS
from utils.profile import load
from utils.record import recorded

ROOT = Path(__file__).parent.parent
GIB = 2**30
MADE = ["all_reduce", "bubble", "exposed", "step", "memory", "sizes", "training_bytes"]
MADE += ["serving_bytes", "fit", "advice", "binds", "crowd"]
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.And: "&&", ast.Or: "||"}
OPERATORS |= {
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "===",
    ast.NotEq: "!==",
}
OPERATORS |= {ast.In: "in", ast.Not: "!", ast.USub: "-"}
CALLS = {"max": "Math.max", "min": "Math.min", "sum": "sum"}


def script(node: ast.AST) -> str:
    """JavaScript of the few things that formulas are made of; of anything else, an error."""
    js = script
    match node:
        case ast.FunctionDef(name, args):
            defaults = [None] * (len(args.args) - len(args.defaults)) + args.defaults
            pairs = zip(args.args, defaults, strict=True)
            names = ", ".join(a.arg + (f" = {js(d)}" if d else "") for a, d in pairs)
            names_ = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            inner = {n.id for n in names_ if isinstance(n.ctx, ast.Store)}
            own = sorted(inner - {a.arg for a in args.args})
            body = "".join(map(js, node.body))
            let = f"let {', '.join(own)};" if own else ""
            return f"function {name}({names}) {{ {let} {body} }}\n"
        case ast.ClassDef(name):
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
            names = [f.target.id + (f" = {js(f.value)}" if f.value else "") for f in fields]
            put = ", ".join(f.target.id for f in fields)
            of_self = [js(n) for n in node.body if isinstance(n, ast.FunctionDef)]
            getters = "".join(
                f.replace("function ", "get ").replace("(self)", "()") for f in of_self
            )
            getters = getters.replace("self.", "this.")
            make = f"constructor({', '.join(names)}) {{ Object.assign(this, {{ {put} }}); }}"
            return f"class {name} {{ {make}\n{getters}}}\n"
        case ast.Expr(ast.Constant()):
            return ""  # a docstring
        case ast.Expr(value):
            return f"{js(value)};"
        case ast.Return(value):
            return f"return {js(value)};"
        case ast.Assign([ast.Tuple(names)], value):
            return f"[{', '.join(map(js, names))}] = {js(value)};\n"
        case ast.Assign([ast.Name(name)], value):
            return f"{name} = {js(value)};\n"
        case ast.For(ast.Name(name), values):
            return f"for ({name} of {js(values)}) {{ {''.join(map(js, node.body))} }}\n"
        case ast.If(test, body, orelse):
            no = f" else {{ {''.join(map(js, orelse))} }}" if orelse else ""
            return f"if ({js(test)}) {{ {''.join(map(js, body))} }}{no}\n"
        case ast.IfExp(test, yes, no):
            return f"({js(test)} ? {js(yes)} : {js(no)})"
        case ast.BinOp(left, sign, right):
            return f"({js(left)} {OPERATORS[type(sign)]} {js(right)})"
        case ast.BoolOp(sign, values):
            return f"({f' {OPERATORS[type(sign)]} '.join(map(js, values))})"
        case ast.UnaryOp(sign, value):
            return f"({OPERATORS[type(sign)]}{js(value)})"
        case ast.Compare(value, [ast.In()], [within]):
            values = within.elts if isinstance(within, ast.Tuple) else None
            listed = f"[{', '.join(map(js, values))}]" if values else js(within)
            return f"{listed}.includes({js(value)})"
        case ast.Compare(left, [sign], [right]):
            return f"({js(left)} {OPERATORS[type(sign)]} {js(right)})"
        case ast.Call(ast.Attribute(of, "values")):
            return f"Object.values({js(of)})"
        case ast.Call(ast.Attribute(of, "append"), [value]):
            return f"{js(of)}.push({js(value)})"
        case ast.Call(ast.Name(name), args, []):
            new = "new " if name[0].isupper() else ""
            return f"{new}{CALLS.get(name, name)}({', '.join(map(js, args))})"
        case ast.Subscript(of, key):
            return f"{js(of)}[{js(key)}]"
        case ast.Attribute(of, name):
            return f"{js(of)}.{name}"
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            put = [f"[{js(k)}]: {js(v)}" if k else f"...{js(v)}" for k, v in pairs]
            return f"{{{', '.join(put)}}}"
        case ast.List(values) | ast.Tuple(values):
            return f"[{', '.join(map(js, values))}]"
        case ast.Starred(value):
            return f"...{js(value)}"
        case ast.Name(name):
            return name
        case ast.Constant(value):
            return json.dumps(value)
    raise ValueError(f"formulas of the page explore must not say: {ast.unparse(node)}")


def formulas() -> str:
    """All formulas of the page, as JavaScript."""
    tree = ast.parse(inspect.getsource(cost))
    there = {getattr(node, "name", None): node for node in tree.body}
    text = "".join(script(there[name]) for name in ("Network", "Cluster", "Plan", *MADE))
    return f"const HALF = {cost.HALF}, sum = (all) => all.reduce((a, b) => a + b, 0);\n{text}"


# --- Will it fit? --------------------------------------------------------------------------------

GPT2 = {"layers": 12.0, "width": 768.0, "heads": 12.0, "kv": 12.0, "hidden": 3072.0}
GPT2 |= {"vocabulary": 50257.0, "gated": False, "tied": True}
HF = "https://huggingface.co/"


def like(model: str, source: str, *numbers: float, gated: bool = True, tied: bool = False) -> dict:
    keys = ("layers", "width", "heads", "kv", "hidden", "vocabulary")
    shape = dict(zip(keys, map(float, numbers), strict=True)) | {"gated": gated, "tied": tied}
    return {"name": model, "source": source, **shape}


MODELS = [  # of each the config.json behind its source
    like(
        "GPT-2 small (124M)",
        HF + "openai-community/gpt2",
        *[*GPT2.values()][:6],
        gated=False,
        tied=True,
    ),
    like(
        "GPT-2 XL (1.6B)",
        HF + "openai-community/gpt2-xl",
        48,
        1600,
        25,
        25,
        6400,
        50257,
        gated=False,
        tied=True,
    ),
    like("TinyLlama 1.1B", HF + "TinyLlama/TinyLlama_v1.1", 22, 2048, 32, 4, 5632, 32000),
    like("Llama 2 7B", HF + "meta-llama/Llama-2-7b-hf", 32, 4096, 32, 32, 11008, 32000),
    like("Mistral 7B", HF + "mistralai/Mistral-7B-v0.1", 32, 4096, 32, 8, 14336, 32000),
    like("Llama 3 8B", HF + "meta-llama/Meta-Llama-3-8B", 32, 4096, 32, 8, 14336, 128256),
    like("Llama 2 13B", HF + "meta-llama/Llama-2-13b-hf", 40, 5120, 40, 40, 13824, 32000),
    like("Llama 3 70B", HF + "meta-llama/Meta-Llama-3-70B", 80, 8192, 64, 8, 28672, 128256),
]
PLAIN = {"task": "training", "length": 1024.0, "batch": 8.0, "pieces": 1.0, "precision": "float32"}
PLAIN |= {"optimizer": "AdamW", "method": "full", "rank": 16.0, "checkpoint": False, "slice": 0.0}
PLAIN |= {"shard": 1.0, "tensor": 1.0, "weights": "16 bits", "out": []}
FUSED = {"optimizer": "AdamW fused"}
AMP = {"precision": "autocast", **FUSED}
EVEN, LEAN = {**AMP, "vocabulary": 50304.0}, {"slice": 512.0}
AGAIN, SHORT = {"checkpoint": True}, {"batch": 1.0, "length": 128.0}
LARGE = {"batch": 32.0}
MEASURED = {  # record: {its arm: settings of GPT-2 small}; other arms have what no switch here says
    "recomputation": {"plain": {}, "checkpointed": AGAIN, "chunked loss": LEAN}
    | {"checkpointed, chunked loss": AGAIN | LEAN},
    "accumulation": {"batch 4, two steps": {"batch": 4.0}}
    | {f"{n} pieces": {"pieces": float(n)} for n in (2, 4, 8)},
    "remedies_in_turn": {"16-bit": AMP, "even vocabulary": EVEN, "checkpointed": EVEN | AGAIN}
    | {"chunked": EVEN | LEAN, "chunked by 2,048": EVEN | {"slice": 2048.0}}
    | {"chunked, 4 pieces": EVEN | LEAN | {"pieces": 4.0}}
    | {"chunked, checkpointed": EVEN | LEAN | AGAIN}
    | {"all in bfloat16": EVEN | LEAN | AGAIN | {"precision": "bfloat16"}},
    "combinations": {"autocast, fused, 8 pieces": AMP | {"pieces": 8.0}}
    | {"… chunked, checkpointed, 4 pieces": AMP | LEAN | AGAIN | {"pieces": 4.0}}
    | {"… the same, step in backward": AMP | LEAN | AGAIN | {"optimizer": "AdamW in backward"}}
    | {"… the same, Adafactor": AMP | LEAN | AGAIN | {"optimizer": "Adafactor"}},
    "optimizer_peaks": {"AdamW, foreach (default)": SHORT, "AdamW, fused": SHORT | FUSED}
    | {"AdamW, step in backward": SHORT | {"optimizer": "AdamW in backward"}}
    | {"SGD with momentum": SHORT | {"optimizer": "SGD momentum"}}
    | {"SGD": SHORT | {"optimizer": "SGD"}, "Adafactor, a loop": SHORT | {"optimizer": "Adafactor"}}
    | {"AdamW, bfloat16, fused": SHORT | FUSED | {"precision": "bfloat16"}},
    "gpt_ladder": {"float32": LARGE, "bfloat16": LARGE | AMP}
    | {"50,304 words": LARGE | AMP | {"vocabulary": 50304.0}},
}


def peaks() -> list[dict]:
    """Each measured peak with what the formula says: record, arm, GiB of both."""
    limits = {"cached": 1.0, "context": 0.0, "card": 0.0}
    found = []
    for record, arms in MEASURED.items():
        result = recorded(record).result
        for arm, settings in arms.items():
            of = result.get("GiB", result)
            gib = of[arm]["GiB"] if isinstance(of[arm], dict) else of[arm]
            gib = gib[0] if isinstance(gib, list) else gib
            says = cost.fit({**GPT2, **PLAIN, **settings, **limits})["peak"] / GIB
            found.append({"record": record, "arm": arm, "says": round(says, 3), "GiB": gib})
    phases = recorded("training_memory").result["GPT-2 small"]["phases"]
    small = {"batch": 4.0, "length": 512.0}
    says = cost.fit({**GPT2, **PLAIN, **small, **limits})["peak"] / GIB
    gib = round(phases["backward 2"][1] / GIB, 3)
    return [
        *found,
        {"record": "training_memory", "arm": "4 x 512", "says": round(says, 3), "GiB": gib},
    ]


def limits() -> dict:
    """What a process takes besides its tensors, and what the cache adds (chapter 2.1's records)."""
    net = recorded("training_memory").result["GPT-2 small"]
    _, tensor, _, _, last = recorded("first_bytes").result
    del tensor
    outside = last[3] - last[2]
    cached = net["reserved"] / net["phases"]["backward 2"][1]
    return {"context": float(round((outside + last[1]) * 2**20)), "cached": round(cached, 3)}


def remedies() -> list[dict]:
    """What to switch on, cheapest first, each with its measured price."""
    again, turns = recorded("recomputation").result, recorded("remedies_in_turn").result
    middle = {n: sorted(e["ms"])[len(e["ms"]) // 2] for n, e in turns.items()}
    pieces = recorded("accumulation").result
    ten = recorded("optimizer_peaks").result
    ms = lambda a, b: f"{a:.1f} ms became {b:.1f} (GPT-2 small, H200)"  # noqa: E731
    rows = [
        (
            "autocast to bfloat16",
            "precision",
            "autocast",
            ms(middle["float32"], middle["16-bit"]),
            "32_amp",
        ),
        (
            "fused AdamW",
            "optimizer",
            "AdamW fused",
            ms(ten["AdamW, foreach (default)"][1], ten["AdamW, fused"][1]),
            "24_fitting",
        ),
        (
            "loss in slices of 2,048 tokens",
            "slice",
            2048.0,
            ms(middle["even vocabulary"], middle["chunked by 2,048"]),
            "24_fitting",
        ),
        (
            "checkpointing",
            "checkpoint",
            True,
            ms(again["plain"][1], again["checkpointed"][1]),
            "24_fitting",
        ),
        (
            "accumulation, one sequence at a time",
            "pieces",
            "batch",
            ms(pieces["plain"][1], pieces["8 pieces"][1]),
            "24_fitting",
        ),
        ("8-bit AdamW", "optimizer", "AdamW 8-bit", "not timed here", "24_fitting"),
        (
            "all in bfloat16",
            "precision",
            "bfloat16",
            "other mathematics: 2.4 shows what it costs",
            "24_fitting",
        ),
        (
            "LoRA, base in bfloat16",
            "method",
            "LoRA",
            "trains adapters only; not timed here",
            "24_fitting",
        ),
        (
            "LoRA, base in 4 bits",
            "method",
            "4-bit LoRA",
            "the base is rounded; not timed here",
            "24_fitting",
        ),
        *((f"FSDP2 on {n} GPUs", "shard", float(n), f"{n} GPUs", "54_sharding") for n in (2, 4, 8)),
        (
            "optimizer state in host memory",
            "optimizer",
            "AdamW offloaded",
            "the bus, in full",
            "24_fitting",
        ),
    ]
    both = [
        {
            "task": "training",
            "from": "",
            **dict(zip(("name", "key", "value", "price", "page"), r, strict=True)),
        }
        for r in rows
    ]
    both[0]["from"] = "bfloat16"
    later = [("weights in 8 bits", "weights", "8 bits"), ("weights in 4 bits", "weights", "4 bits")]
    both += [
        {
            "task": "serving",
            "from": "",
            "name": n,
            "key": k,
            "value": v,
            "price": "less exact; not timed here",
            "page": "which_gpu",
        }
        for n, k, v in later
    ]
    return [
        *both,
        {
            "task": "serving",
            "from": "",
            "name": "two GPUs, each layer split",
            "key": "tensor",
            "value": 2.0,
            "price": "2 GPUs",
            "page": "54_sharding",
        },
    ]


# --- What binds my step? How many GPUs pay? ------------------------------------------------------

LAUNCH = 10.0  # µs


def stored(notebook: str, cell: str) -> list[str]:
    """Lines that a cell of a chapter has printed."""
    cells = json.loads((ROOT / f"book/{notebook}.ipynb").read_text("utf-8"))["cells"]
    outputs = next(c for c in cells if c["id"] == cell)["outputs"]
    return "".join(outputs[0]["data"]["text/plain"]).splitlines()


def trials() -> dict:
    """Right answers by bound: of profiles (``python -m utils.bounds``), and of the four numbers."""
    cells = json.loads((ROOT / "book/classifier_trials.ipynb").read_text("utf-8"))["cells"]
    code = "".join(next(c for c in cells if c["id"] == "labels")["source"]).split("def ")[0]
    truth: dict = {}
    exec(code[code.index("PLANTED") :], truth)  # the page's own labels
    labels = {name: bound for bound, names in truth["TRUTH"].items() for name in names.split()}
    counts = {"profile": {}, "numbers": {}}
    for kind in truth["PLANTED"]:
        for name, case in recorded(f"planted_{kind}").result.items():
            found = diagnose(load(case["trace"]), wall=case["us"])
            seen, ms = found.evidence, found.evidence.wall / 1e3
            numbers = {"tflop": seen.of_peak * seen.busy * ms / 1e3, "peak": 1.0, "bandwidth": 1.0}
            numbers |= {"gigabytes": seen.of_bandwidth * seen.busy * ms / 1e3, "step": ms}
            numbers |= {"launches": float(seen.kernels), "launch": LAUNCH}
            answer = cost.binds({**numbers, "waiting": found.evidence.shares["data"] * ms})["bound"]
            for kind_, said in (("profile", found.bound), ("numbers", answer)):
                right, asked = counts[kind_].get(said, (0, 0))
                counts[kind_][said] = right + (said == labels[name]), asked + 1
    return counts


def misses() -> list[list]:
    """Runs that the cost model was held against: what, computed, measured, off by [%]."""
    rows = []
    for cell in ("cost-own-table", "published-table"):
        for line in stored("55_beyond", cell)[1:]:
            *words, computed, measured, off = line.split()
            name = line[: line.index("  ")] if "  " in line else " ".join(words)
            rows.append([name, float(computed), float(measured), int(off.rstrip("%"))])
    return rows


def data() -> dict:
    """Everything that the JavaScript knows and does not compute."""
    keys = ("name", "memory_gb", "bandwidth", "fp32", "tf32", "bf16", "source")
    cards = [{key: getattr(gpu, key) for key in keys} for gpu in GPUS]
    found = {"cards": cards, "models": MODELS, "remedies": remedies(), "limits": limits()}
    return {
        **found,
        "plain": PLAIN,
        "peaks": peaks(),
        "trials": trials(),
        "misses": misses(),
        "launch": LAUNCH,
    }
