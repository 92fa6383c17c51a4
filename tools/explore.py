"""A Sphinx extension: what the calculators of the page explore are made of, at build time.

The formulas of utils/cost.py become JavaScript; datasheets, measured peaks and counted answers come
from book/gpus.json, the records and stored outputs; the rest is in book/explore.yml. Run as a
program, it brings the page's tables in line with them: ``python tools/explore.py``.
"""

import ast
import inspect
import json
import re
import sys
from pathlib import Path
from statistics import median

import yaml
from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the utils beside this file, whichever are installed

from utils import cost  # noqa: E402
from utils.bounds import diagnose  # noqa: E402
from utils.gpus import GPUS  # noqa: E402
from utils.profile import load  # noqa: E402
from utils.record import recorded  # noqa: E402

GIB = cost.GIB
KNOWN = yaml.safe_load((ROOT / "book" / "explore.yml").read_text(encoding="utf-8"))
PAGE = ROOT / "book" / "explore.md"
TABLE = re.compile(
    r"(<!-- (fits|errors|answers|steps|crowds) -->\n).*?(?=\n<!-- end -->)", re.DOTALL
)
PLACES = {  # what a link to a calculator carries, by the page that it is on
    "book/24_fitting": "fit.model=GPT-2+small+(124M)&fit.on=H200+SXM",
    "book/55_beyond": "gpus.parameters=70&gpus.layers=80&gpus.width=8192&gpus.context=8192"
    "&gpus.recompute=true&gpus.together=1&gpus.parts=5&gpus.tflops=494.5",
}

# --- formulas ------------------------------------------------------------------------------------

MADE = ["Network", "Cluster", "Plan", "all_reduce", "bubble", "exposed", "step", "memory", "sizes"]
MADE += ["training_bytes", "serving_bytes", "wrong", "fit", "switched", "advice", "counted"]
MADE += ["binds", "crowd", "copies", "paying"]
SIGNS = {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "Mod": "%", "And": "&&", "Or": "||"}
SIGNS |= {"Gt": ">", "GtE": ">=", "Lt": "<", "LtE": "<=", "Eq": "===", "NotEq": "!=="}
SIGNS |= {"Not": "!", "USub": "-"}
BINDS = {"Or": 2, "And": 3, "Add": 5, "Sub": 5}  # how strongly; comparisons 4, products 6
CALLS = {"max": "Math.max", "min": "Math.min"}


def binding(node: ast.AST) -> int:
    """How strongly what JavaScript has for ``node`` holds together."""
    kinds = {ast.IfExp: 1, ast.Compare: 4, ast.UnaryOp: 7, ast.BinOp: 6, ast.BoolOp: 6}
    of_sign = BINDS.get(type(getattr(node, "op", None)).__name__)
    return of_sign or kinds.get(type(node), 9)


def script(node: ast.AST) -> str:
    """JavaScript of the few things that formulas are made of; of anything else, an error."""
    js = script
    held = lambda node, least: js(node) if binding(node) >= least else f"({js(node)})"  # noqa: E731
    match node:
        case ast.FunctionDef(name, args):
            defaults = [None] * (len(args.args) - len(args.defaults)) + args.defaults
            pairs = zip(args.args, defaults, strict=True)
            names = ",".join(a.arg + (f"={js(d)}" if d else "") for a, d in pairs)
            return f"function {name}({names}){{{''.join(map(js, node.body))}}}\n"
        case ast.ClassDef(name):
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
            names = ",".join(f.target.id + (f"={js(f.value)}" if f.value else "") for f in fields)
            put = ",".join(f.target.id for f in fields)
            getters = "".join(js(n) for n in node.body if isinstance(n, ast.FunctionDef))
            getters = getters.replace("function ", "get ").replace("(self)", "()")
            getters = getters.replace("self.", "this.")
            return f"class {name}{{constructor({names}){{Object.assign(this,{{{put}}})}}{getters}}}"
        case ast.Expr(ast.Constant()):
            return ""  # a docstring
        case ast.Expr(value):
            return f"{js(value)};"
        case ast.Return(value):
            return f"return {js(value)};"
        case ast.Assign([ast.Tuple(names)], value):
            return f"var [{','.join(map(js, names))}]={js(value)};"
        case ast.Assign([ast.Name(name)], value):
            return f"var {name}={js(value)};"
        case ast.For(ast.Name(name), values):
            return f"for(var {name} of {js(values)}){{{''.join(map(js, node.body))}}}"
        case ast.If(test, body, orelse):
            no = f"else{{{''.join(map(js, orelse))}}}" if orelse else ""
            return f"if({js(test)}){{{''.join(map(js, body))}}}{no}"
        case ast.IfExp(test, yes, no):
            return f"{held(test, 2)}?{js(yes)}:{js(no)}"
        case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]) if (
            type(sign).__name__ in SIGNS
        ):
            least = binding(node)
            return f"{held(left, least)}{SIGNS[type(sign).__name__]}{held(right, least + 1)}"
        case ast.BoolOp(sign, values):
            return SIGNS[type(sign).__name__].join(held(v, binding(node) + 1) for v in values)
        case ast.UnaryOp(sign, value):
            return f"{SIGNS[type(sign).__name__]}{held(value, 7)}"
        case ast.Compare(value, [ast.In()], [within]):
            return f"{js(within)}.includes({js(value)})"  # of lists and tuples
        case ast.Call(ast.Name("sum"), [ast.Call(ast.Attribute(of, "values"))]):
            return f"Object.values({js(of)}).reduce((a,b)=>a+b,0)"
        case ast.Call(ast.Attribute(of, "append"), [value]):
            return f"{js(of)}.push({js(value)})"
        case ast.Call(ast.Name(name), args, []):
            new = "new " if name[0].isupper() else ""
            return f"{new}{CALLS.get(name, name)}({','.join(map(js, args))})"
        case ast.Subscript(of, ast.Constant(str(key))):
            return f"{js(of)}.{key}" if key.isidentifier() else f"{js(of)}[{key!r}]"
        case ast.Attribute(of, name):
            return f"{js(of)}.{name}"
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            put = [f"{k.value}:{js(v)}" if k else f"...{js(v)}" for k, v in pairs]
            put = [re.sub(r"^(\w+):\1$", r"\1", one) for one in put]
            return f"{{{','.join(put)}}}"
        case ast.List(values) | ast.Tuple(values):
            return f"[{','.join(map(js, values))}]"
        case ast.Starred(value):
            return f"...{js(value)}"
        case ast.Name(name):
            return name
        case ast.Constant(value):
            return json.dumps(value)
    raise ValueError(f"formulas of the page explore must not say: {ast.unparse(node)}")


def formulas() -> str:
    """All formulas of the page, as JavaScript."""
    there = {getattr(n, "name", None): n for n in ast.parse(inspect.getsource(cost)).body}
    constants = {name: value for name, value in vars(cost).items() if name.isupper()}
    put = ",".join(f"{name}={value!r}" for name, value in constants.items())
    return f"const {put};\n" + "".join(script(there[name]) for name in MADE)


# --- Will it fit? --------------------------------------------------------------------------------

SHAPE = ("layers", "width", "heads", "kv", "hidden", "vocabulary")


def models() -> dict[str, dict]:
    """The short list: a model's shape, and the page that has its config.json."""
    return {
        name: dict(zip(SHAPE, shape, strict=True)) | KNOWN["kinds"][kind] | {"source": source}
        for name, (source, *shape, kind) in KNOWN["models"].items()
    }


def limits() -> dict[str, float]:
    """What a process takes besides its tensors, and what the cache adds (chapter 2.1's records)."""
    net = recorded("training_memory").result["GPT-2 small"]
    last = recorded("first_bytes").result[-1]  # names, MiB allocated, reserved, in use
    outside = last[3] - last[2]
    cached = net["reserved"] / net["phases"]["backward 2"][1]
    return {"context": round((outside + last[1]) * 2**20), "cached": round(cached, 3)}


def at(record: str, arm: str) -> object:
    """What a record says of an arm, whose name may be a path to it."""
    found = recorded(record).result
    for key in arm.split("/"):
        found = found[int(key) if isinstance(found, list) else key]
    return found


def gib(of: object) -> float:
    """A measured peak in GiB: of several runs, or GPUs, the highest."""
    match of:
        case {"GiB": size}:
            return size
        case {"GB": sizes}:
            return round(max([sizes] if isinstance(sizes, float) else sizes) * 1e9 / GIB, 3)
        case [dict(), *_]:
            return max(map(gib, of))
    return of[0] if isinstance(of, list) else of


def peaks() -> dict[str, list]:
    """Of each measured peak what the formula says, and what it was, in GiB; published ones in GB.

    The former are allocated bytes, the latter all that a process holds.
    """
    plain, bare = KNOWN["plain"], {"cached": 1.0, "context": 0, "card": 0}
    gpt2 = plain | models()["GPT-2 small (124M)"] | bare
    found: dict[str, list] = {group: [] for group in KNOWN["measured"]}
    for group, records in KNOWN["measured"].items():
        for record, arms in records.items():
            for arm, settings in arms.items():
                of = at(record, arm)
                own = {"layers": of["blocks"]} if record == "largest_that_fits" else {}
                says = cost.fit(gpt2 | settings | own)["peak"] / GIB
                found[group].append([round(says, 2), gib(of)])
    phases = recorded("training_memory").result["GPT-2 small"]["phases"]
    short = [cost.fit(gpt2 | {"batch": 4, "length": 512})["peak"], phases["backward 2"][1]]
    found["GPT-2 small"].append([round(size / GIB, 2) for size in short])
    llama = plain | models()["Llama 3 8B"] | bare | {"length": 2048, "slice": 512}
    found["torchtune, 8B"] = [
        [round(cost.fit(llama | own | {"batch": 2, "checkpoint": True})["peak"] / GIB, 2), gib]
        for own, gib in KNOWN["torchtune"]
    ]
    lengths, *qwens = KNOWN["published"].values()
    alone = plain | limits() | {"batch": 1, "rank": 64, "checkpoint": True, "card": 0}
    for rows in qwens:
        shape = dict(zip(SHAPE, rows["shape"], strict=True)) | KNOWN["kinds"]["llama"]
        for method in ("LoRA", "4-bit LoRA"):
            for length, gb in zip(lengths, rows[method], strict=True):
                s = alone | shape | {"length": length, "method": method}
                says = round(cost.fit(s)["held"] / 1e9, 1)
                found.setdefault(f"Qwen, {method}", []).append([says, gb])
    return found


def remedies(task: str) -> list[dict]:
    """What to switch on, cheapest first, each with its measured price."""

    def price(record: str, before: str, after: str, more: str = "") -> str:
        def ms(arm: str) -> float:
            of = at(record, arm)
            if "seconds" in arm:
                return 1e3 * median(of[3:])  # three warm up
            if isinstance(of, dict):
                return median(of["ms"])
            return median(of if "processes" in arm else of[1:])  # else the first is the peak

        return f"{ms(before):.3g} ms became {ms(after):.3g}{more}"

    return [
        {"name": name, "set": change, "page": page}
        | {"price": of if isinstance(of, str) else price(*of)}
        for name, change, page, of in KNOWN["remedies"][task]
    ]


# --- What binds my step? How many GPUs pay? ------------------------------------------------------


def trials() -> dict[str, dict]:
    """Right answers and answers, by bound: of profiles, and of the four numbers that they have.

    Data and other GPUs are one bound here, waiting; where neither roof has the step, or several
    things share it, "unclear" and "neither roof" are both right.
    """
    cells = json.loads((ROOT / "book/classifier_trials.ipynb").read_text("utf-8"))["cells"]
    code = "".join(next(c for c in cells if c["id"] == "labels")["source"]).split("def ")[0]
    truth: dict = {}
    exec(code[code.index("PLANTED") :], truth)  # the page's own labels
    labels = {name: bound for bound, names in truth["TRUTH"].items() for name in names.split()}
    same = {"data": "waiting", "other GPUs": "waiting", "neither roof": "unclear"}
    counts: dict[str, dict] = {"profile": {}, "numbers": {}}
    for kind in truth["PLANTED"]:
        for name, case in recorded(f"planted_{kind}").result.items():
            found = diagnose(load(case["trace"]), wall=case["us"])
            said = {"evidence": vars(found.evidence), "shares": found.evidence.shares}
            numbers = cost.counted(said, 1.0, 1.0) | {"launch": KNOWN["launch"]}
            answers = found.bound, cost.binds(numbers | {"peak": 1.0, "bandwidth": 1.0})["bound"]
            for which, answer in zip(counts, answers, strict=True):
                answer, label = (same.get(a, a) for a in (answer, labels[name]))
                right, asked = counts[which].get(answer, (0, 0))
                counts[which][answer] = right + (answer == label), asked + 1
    return counts


def misses() -> dict[str, list]:
    """Runs that the cost model was held against: computed, measured, which (chapters 5.5, 5.4)."""
    cells = json.loads((ROOT / "book/55_beyond.ipynb").read_text("utf-8"))["cells"]
    outputs = {c["id"]: c["outputs"] for c in cells if c["cell_type"] == "code"}

    def printed(cell: str) -> list[list]:
        lines = "".join(outputs[cell][0]["data"]["text/plain"]).splitlines()[1:]
        runs = [line.split("  ") for line in lines if "average" not in line]
        return [
            [run[0], *map(float, re.findall(r"-?[\d.]+", " ".join(run[1:]).replace(",", "")))]
            for run in runs
        ]

    two, ran, ways = KNOWN["two_gpus"], recorded("sharded_speed").result, []
    network, cluster = cost.Network(*two["network"]), cost.Cluster(*two["cluster"])
    for way, plan in two["ways"].items():
        says = 1e3 * cost.step(network, cluster, cost.Plan(**plan), 4 * 1024)["step"]
        took = median(ms for run in ran[way] for ms in run["ms"])
        ways.append([round(says, 1), round(took, 1), way])
    own = [[computed, took, run] for run, _, computed, took, *_ in printed("cost-own-table")]
    published = [
        [round(says * (1 + off / 100)), round(says), run]
        for run, _, says, off, *_ in printed("published-table")  # off: by all formulas
    ]
    return {"ResNet-50, ours": own, "train.py, ours": ways, "LLMs, published": published}


# --- the page ------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]], last: str = "--:") -> str:
    lines = [head, [":--", *["--:"] * (len(head) - 2), last], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def fits() -> str:
    """Worked cases of the first calculator: what a card of 24 GB can do with some models."""
    start = KNOWN["plain"] | limits() | {"card": 24}
    rows = []
    for name in ("Llama 2 7B", "Llama 3 8B", "Llama 2 13B", "Llama 3 70B"):
        every = [(task, *way) for task, ways in KNOWN["ways"].items() for way in ways]
        for task, way, change, _ in every if name == KNOWN["model"] else every[1:3]:
            s = start | models()[name] | change | {"task": task}
            found, first = cost.advice(s, remedies(task)), cost.fit(s)
            on = [r["name"] for r in found["chosen"] if r["name"] not in found["out"]]
            on = "; ".join(on if found["says"] == "fits" else []) or "–"
            needs = [f"{of['held'] / GIB:.1f}" for of in (first, found)]
            rows.append([f"{name}: {way}", needs[0], f"{needs[1]}, {found['says']}", on])
    head = ["to do", "as it is [GiB]", "with what helps [GiB]", "switch on"]
    return table(head, rows, last=":--")


def errors() -> str:
    rows = []
    for group, points in peaks().items():
        off = sorted(says / was - 1 for says, was in points)
        within = sum(abs(o) < 0.04 for o in off)
        rows.append([group, len(off), within, f"{off[0]:+.1%}", f"{off[-1]:+.1%}"])
    return table(["peaks of", "how many", "within 4%", "lowest", "highest"], rows)


def answers() -> str:
    counts = trials()
    names = ("waiting", "python", "memory", "arithmetic", "unclear")
    found = [[name, *(counts[kind].get(name, (0, 0)) for kind in counts)] for name in names]
    rows = [[name, *("{} of {}".format(*pair) for pair in pairs)] for name, *pairs in found]
    head = ["answer", "right, from a profile", "right, from its four numbers"]
    return table(head, rows)


def steps() -> str:
    """Worked cases of the second calculator: planted steps on an H200, by their profiles."""
    gpu = {"peak": 989.4, "bandwidth": 4800.0, "launch": KNOWN["launch"]}
    rows = []
    for name in ("data one_process", "python tiny_mlp", "memory elementwise", "arithmetic matmul"):
        truth, case = name.split()
        of = recorded(f"planted_{truth}").result[case]
        seen = diagnose(load(of["trace"]), wall=of["us"]).evidence
        said = {"evidence": vars(seen), "shares": seen.shares}
        s = gpu | cost.counted(said, gpu["peak"], gpu["bandwidth"])
        keys = ("step", "tflop", "gigabytes", "launches", "waiting")
        rows.append([f"{case}, planted: {truth}", *(f"{s[k]:.3g}" for k in keys)])
        rows[-1].append(cost.binds(s)["bound"])
    head = ["step", "takes [ms]", "TFLOP", "GB", "kernels", "GPU waits [ms]", "answer"]
    return table(head, rows, last=":--")


def crowds() -> str:
    rows = []
    for gpus in (1, 8, 64, 512, 1024):
        found = cost.crowd(KNOWN["crowd"], gpus)
        took = [f"{found['step']:.3g}", f"{found['part']:.0%}", f"{found['bytes'] / GIB:.1f}"]
        rows.append([f"{gpus:,}", *took])
    head = ["GPUs", "step [s]", "of it computing", "weights and states on each [GiB]"]
    return table(head, rows)


def page() -> str:
    """The page as it should be: its tables by this program, the rest by hand."""
    made = {"fits": fits, "errors": errors, "answers": answers}
    made |= {"steps": steps, "crowds": crowds}
    return TABLE.sub(lambda of: f"{of[1]}\n{made[of[2]]()}\n", PAGE.read_text(encoding="utf-8"))


def data() -> dict:
    """Everything that the JavaScript knows and does not compute."""
    keys = ("name", "memory_gb", "bandwidth", "fp32", "tf32", "bf16", "fp16")
    cards = [[getattr(gpu, key) for key in keys] for gpu in GPUS]
    rows = re.findall(
        r"^\| (\w+) \| (\d+) of (\d+) \| (\d+) of (\d+) \|$", PAGE.read_text("utf-8"), re.M
    )
    chosen = ("plain", "model", "card", "bounds", "launch", "step", "crowd", "ways")
    found = {key: KNOWN[key] for key in chosen} | {"cards": cards, "models": models()}
    found |= {"remedies": {task: remedies(task) for task in KNOWN["remedies"]}}
    found |= {"limits": limits(), "peaks": peaks()}
    return found | {"trials": {name: [*map(int, n)] for name, *n in rows}, "misses": misses()}


def javascript() -> str:
    """The page's script: formulas, data, and explore.js without its comments and indentation."""
    said = json.dumps(data(), ensure_ascii=False, separators=(",", ":"))
    shown = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    shown = re.sub(r"^\s*(?://.*\n)?", "", shown, flags=re.MULTILINE)
    shown = re.sub(r"(?<=[,;{(\[])\n", "", shown)
    shown = re.sub(r" (=>|[=!]==|&&|\|\||[=?:]) ", r"\1", shown)  # no text has these signs
    return f'"use strict";\n{formulas()}const BOOK={said};\n{shown}'


def carry_state(app: Sphinx, tree: nodes.document, name: str) -> None:
    """Let a chapter's link to a calculator carry the chapter's own case."""
    for link in tree.findall(nodes.reference):
        if name in PLACES and link.get("refuri", "").startswith("explore.html#"):
            link["refuri"] = link["refuri"].replace("#", f"?{PLACES[name]}#")


def write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        Path(app.outdir, "_static", "explore.js").write_text(javascript(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", carry_state)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
