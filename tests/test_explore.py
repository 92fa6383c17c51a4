"""The calculators of the page explore: against what was measured, and in a browser."""

import json
import random
import re
import sys
from decimal import ROUND_HALF_UP, Context, Decimal

import pytest

from notebooks import ROOT
from pages import LOCAL, PHONE, faults

sys.path.insert(0, str(ROOT / "tools"))
import explore
from utils import cost
from utils.bounds import diagnose
from utils.bounds.verdict import as_json
from utils.profile import load
from utils.record import recorded

GIB = cost.GIB
TITLES = {"will-it-fit": "Fit", "what-binds-my-step": "Step", "how-many-gpus-pay": "GPUs"}
HTML = "".join(
    f"<section id={i}><h2>{title}</h2><p>A.</p></section>" for i, title in TITLES.items()
)
FILL = """([key, values]) => {
    for (const [name, value] of Object.entries(values)) {
        const input = document.getElementById(`${key}-${name}`);
        if (input.type === 'checkbox') input.checked = value; else input.value = value;
        input.dispatchEvent(new Event(/checkbox|select/.test(input.type) ? 'change' : 'input'));
    }
}"""
VISIT = """queries => queries.map(query => {
    history.replaceState(null, '', `?${query}`);
    dispatchEvent(new Event('popstate'));
    return SAID;
})"""
SAID = """Object.fromEntries(
    [...document.querySelectorAll('[data-out]')].map(e => [e.dataset.out, e.textContent]))"""
CALL = "calls => calls.map(([name, ...values]) => JSON.stringify(eval(name)(...values)))"


def settings(draw: random.Random) -> list[dict]:
    """What a reader may set in each calculator."""
    one = draw.choice
    fit = explore.KNOWN["plain"] | one(list(explore.models().values())) | explore.limits()
    fit |= {key: one(values) for key, values in {
        "task": ["training", "training", "serving"], "length": [128, 1000, 8192],
        "batch": [1, 3, 8, 64], "precision": ["float32", "autocast", "bfloat16"],
        "optimizer": ["AdamW", "AdamW fused", "AdamW 8-bit", "SGD momentum", "SGD", "Adafactor"],
        "method": ["full", "full", "LoRA", "4-bit LoRA"], "checkpoint": [False, True],
        "slice": [0, 512, 2048], "together": [1, 3, 64], "shard": [1, 2, 8], "named": [False, True],
        "tensor": [1, 4], "weights": ["16 bits", "8 bits", "4 bits"], "host": [False, True],
        "early": [False, True], "card": [8, 24, 80], "rank": [8, 64],
    }.items()}  # fmt: skip
    fit.pop("source")
    step = {key: round(draw.uniform(0, 900), 3) for key in ("tflop", "gigabytes", "waiting")}
    step |= {"launches": draw.randrange(4000), "launch": 10, "step": draw.randrange(900, 2000)}
    step |= {"peak": draw.randrange(8, 2000), "bandwidth": draw.randrange(200, 8000)}
    ways = ["DDP", "FSDP2", "FSDP2 x tensor 8", "tensor 8 x pipeline 8"]
    gpus = {"parameters": draw.randrange(1, 900), "layers": 80, "width": 8192, "context": 4096}
    gpus |= {"recompute": one([False, True]), "tflops": draw.randrange(10, 900), "inside": 350}
    gpus |= {"between": draw.randrange(1, 100), "latency": 40, "way": one(ways)}
    gpus |= {"together": one([1, 3]), "parts": one([1, 5])}
    return [fit, step, gpus | {"tokens": 4096 * 2 ** draw.randrange(9)}]


TRIALS = explore.data()["trials"]
DRAW = random.Random(0)
DRAWN = [settings(DRAW) for _ in range(150)]


def rounded(value: object) -> object:
    """The same with more digits than a page prints; whole numbers are floats in both languages."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{float(value):.12g}" if is_number else value


def calls() -> list[list]:
    every = []
    for fit, step, gpus in DRAWN:
        on = explore.remedies(fit["task"])
        every += [["fit", fit], ["wrong", fit], ["advice", fit, on], ["binds", step]]
        every += [["crowd", gpus, 64], ["paying", gpus, [2, 4, 8, 16, 32]], ["copies", gpus]]
    return every


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """Open the calculators alone, from a file, with what a test makes of their script."""
    folder, shown = tmp_path_factory.mktemp("explore"), []

    def opened(script: str = explore.javascript(), query: str = ""):
        file = folder / "explore.html"
        page = f"<meta charset=utf-8>{HTML}<script>{script}</script>"
        file.write_text(page, encoding="utf-8")
        shown.append(browser.new_page())
        shown[-1].goto(file.as_uri() + query)
        return shown[-1]

    yield opened
    for page in shown:
        page.close()


# --- formulas ------------------------------------------------------------------------------------


def test_javascript_says_what_python_says(opened) -> None:
    """And a formula that was changed says something else."""
    every, made = calls(), explore.javascript()
    own = [rounded(getattr(cost, name)(*values)) for name, *values in every]

    def differ(script: str) -> set[str]:
        said = map(json.loads, opened(script).evaluate(CALL, every))
        trios = zip(every, own, said, strict=True)
        return {call[0] for call, python, js in trios if python != rounded(js)}

    assert differ(made) == set()
    changes = {"8*width": "9*width", "5*most": "4*most", "2*(ranks-1)": "3*(ranks-1)"}
    changed = made
    for old, new in changes.items():
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    assert differ(changed) >= {"fit", "binds", "crowd"}


def test_what_a_formula_must_not_say_is_an_error() -> None:
    with pytest.raises(ValueError, match="must not say: lambda"):
        explore.script(explore.ast.parse("lambda: 1").body[0])


# --- the page's own inputs and outputs -----------------------------------------------------------


def fixed(value: float, digits: int) -> str:
    """As toFixed rounds: what is in the middle goes up."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def three(value: float) -> str:
    """Three digits, or all of a whole number."""
    if value >= 999.5:
        return f"{int(fixed(value, 0)):,}"
    short = Context(prec=3, rounding=ROUND_HALF_UP).create_decimal(value)
    return f"{short:.{max(0, 2 - short.adjusted())}f}"


def printed(fit: dict, step: dict, gpus: dict) -> dict[str, str]:
    """What the page has to show, by Python."""
    said = {}
    if not cost.wrong(fit):
        found = cost.fit(fit)
        room = found["peak"] * (fit["cached"] - 1)
        parts = found["parts"] | {"PyTorch's cache": room, "CUDA itself": fit["context"]}
        parts["held"] = found["held"]
        said |= {name: fixed(size / GIB, 1) for name, size in parts.items() if size}
    found = cost.binds(step)
    said |= {name: fixed(ms, 3) for name, ms in found["ms"].items()}
    same = {"neither roof": "unclear"}.get(found["bound"], found["bound"])
    said["right"] = "{2} of {3}".format(*TRIALS[same])
    for n in (2**power for power in range(15)):
        if n == 1 or n <= cost.copies(gpus):
            found = cost.crowd(gpus, n)
            said |= {f"step-{n}": three(found["step"])}
            said |= {f"part-{n}": f"{fixed(100 * found['part'], 0)}%"}
    return said


def query(fit: dict, step: dict, gpus: dict) -> str:
    every = {"fit": fit, "step": step, "gpus": gpus}
    pairs = [(f"{key}.{name}", value) for key, of in every.items() for name, value in of.items()]
    return "&".join(f"{name}={value}".replace("True", "true") for name, value in pairs)


def test_the_page_prints_what_python_computes(opened) -> None:
    """To the last digit: 150 settings by the address, some of them through the inputs as well."""
    page = opened()
    said = page.evaluate(VISIT.replace("SAID", SAID), [query(*drawn) for drawn in DRAWN])
    assert [d for d, s in zip(DRAWN, said, strict=True) if s != printed(*d)] == []
    for drawn in DRAWN[:2]:
        page = opened()
        for key, values in zip(("fit", "step", "gpus"), drawn, strict=True):
            own = values.keys() - {"cached", "context"}
            page.evaluate(FILL, [key, {name: values[name] for name in sorted(own)}])
        assert page.evaluate(SAID) == printed(*drawn)
        again = opened(query=page.url[page.url.index("?") :])
        assert again.evaluate(SAID) == printed(*drawn), "the address does not keep the state"


def test_a_changed_formula_is_seen_on_the_page(opened) -> None:
    page = opened(explore.javascript().replace("16)/1e9", "17)/1e9").replace("?12:10", "?12:11"))
    said = page.evaluate(VISIT.replace("SAID", SAID), [query(*drawn) for drawn in DRAWN[:20]])
    assert any(s != printed(*d) for d, s in zip(DRAWN[:20], said, strict=True))


@pytest.mark.parametrize(
    "asked, sentence",
    [
        ("fit.batch=-3", "“-3” is not a whole number above 0: sequences, a step."),
        ("fit.batch=2.5", "“2.5” is not a whole number above 0: sequences, a step."),
        ("fit.length=long", "“long” is not a whole number above 0: length, tokens each."),
        ("fit.length=", "Please fill in length."),
        ("fit.layers=0", "“0” is not a whole number above 0: layers."),
        ("fit.card=1e99", "“1e99” is not a number above 0: memory, GiB."),
        ("fit.heads=7", "Heads must divide the width: each head has width / heads numbers."),
        ("fit.kv=5", "Heads of keys must divide the heads: each is shared by equally many."),
        ("fit.model=Llama 9", "“Llama 9” is none of the choices: model."),
        ("fit.early=true&fit.together=2", "Stepping in the backward pass rules out accumulation"),
        ("step.waiting=99", "The GPU cannot wait longer than the step takes."),
        ("step.tflop=-1", "“-1” is not a number from 0 on: operations, TFLOP."),
        ("gpus.tokens=5", "A step needs at least one sequence: tokens a step below the length."),
    ],
)
def test_bad_input_gets_a_sentence(opened, asked, sentence) -> None:
    """From the address as from the keyboard; beside the input, too, and nothing is computed."""
    page = opened(query=f"?{asked}")
    form = page.locator(f"div:has(> #{asked.split('.')[0]}-form)")
    form.get_by_role("status").get_by_text(sentence).wait_for()
    assert form.locator("[data-out]").count() == 0
    key, _, value = asked.split("&")[-1].partition("=")
    field = page.locator(f"[name='{key}']")
    if "is not" in sentence or "fill in" in sentence:
        assert field.get_attribute("aria-invalid") == "true"
        beside = page.locator(f"#{field.get_attribute('aria-describedby')}")
        assert sentence in beside.inner_text()
        field.fill("8")
        form.locator("[data-out]").first.wait_for()
        field.fill(value)
        assert sentence in beside.inner_text()


def test_a_profile_is_read(opened) -> None:
    case = recorded("planted_python").result["tiny_mlp"]
    found = diagnose(load(case["trace"]), wall=case["us"])
    page = opened()
    page.locator("#step-paste").fill(as_json(found))
    said = page.locator("div:has(> #step-form)")
    assert f"The profile says python: {found.reason}. Next: {found.next}" in said.inner_text()
    assert page.locator("#step-launches").input_value() == f"{found.evidence.kernels:g}"
    assert page.locator("#step-card").input_value() == "H200 SXM"
    page.locator("#step-paste").fill("<b>slow</b>")
    assert "This is not what" in said.inner_text() and "The profile says" not in said.inner_text()


# --- what the page claims ------------------------------------------------------------------------


def test_measured_peaks() -> None:
    off = {name: [s / was - 1 for s, was in of] for name, of in explore.peaks().items()}
    assert len(off["GPT-2 small"]) == 32 and all(-0.05 < o < 0 for o in off["GPT-2 small"])
    gpts, among = off["GPT 1.3B, 6.6B"], {"train.py, 20M": (3, -0.48, -0.12)}
    assert (len(gpts), sum(abs(o) < 0.04 for o in gpts)) == (15, 11) and min(gpts) > -0.27
    among |= {"train.py, 1–4B": (9, -0.23, 0), "torch.compile": (9, -0.09, 0.62)}
    for name, (count, least, most) in among.items():
        assert len(off[name]) == count and all(least < o < most for o in off[name]), name
    assert all(abs(o) < 0.07 for o in off["torchtune, 8B"])
    for method, limit in (("LoRA", 0.08), ("4-bit LoRA", 0.14)):
        assert all(abs(o) < limit for o in off[f"Qwen, {method}"][6:])  # 7B and 14B


def test_parameters_are_those_of_the_published_models() -> None:
    """As the model cards and checkpoints count them."""
    counts = [124_439_808, 1_557_611_200, 1_100_048_384, 1_235_814_400, 6_738_415_616]
    counts += [7_241_732_096, 8_030_261_248, 13_015_864_320, 70_553_706_496]
    plain = explore.KNOWN["plain"]
    assert [cost.sizes(plain | model)["all"] for model in explore.models().values()] == counts


def test_tables_follow_the_formulas_and_the_script_is_small() -> None:
    assert explore.page() == explore.PAGE.read_text("utf-8"), "run python tools/explore.py"
    sheet = (ROOT / "book" / "_static" / "explore.css").read_bytes()
    assert len(explore.javascript().encode()) + len(sheet) <= 40_000


# --- the built page ------------------------------------------------------------------------------


def test_a_newcomer_finds_how_to_train_7b_on_24_gb(open_page, site) -> None:
    visit = open_page("book/explore")
    page, form = visit.page, visit.page.locator("div:has(> #fit-form)")
    page.get_by_label("model", exact=True).first.select_option("Mistral 7B")
    page.get_by_label("card").first.select_option("RTX 3090")
    status = form.get_by_role("status")
    status.get_by_text(
        re.compile("Mistral 7B .* does not fit on 24 GiB. One such card can")
    ).wait_for()
    button = form.get_by_role("button", name="set: train adapters (LoRA)")
    button.focus()
    page.keyboard.press("Enter")
    status.get_by_text(re.compile("Mistral 7B .* GiB and fits on 24 GiB")).wait_for()
    assert "fit.method=LoRA" in page.url and "fit.checkpoint=true" in page.url
    page.set_viewport_size(PHONE)
    assert faults(page, "article") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert visit.errors == [] and all(url.startswith(LOCAL) for url in visit.requests)
    html = (site / "book" / "explore.html").read_text(encoding="utf-8")
    assert "Llama 2 7B: train adapters (LoRA)" in html, "without JavaScript, tables"


def test_a_chapter_leads_there_with_its_own_case(open_page) -> None:
    page = open_page("book/24_fitting").page
    page.locator("article a[href*='explore.html']").first.click()
    page.locator("#fit-model").wait_for()
    assert page.locator("#fit-model").input_value() == "GPT-2 small (124M)"
