"""The guide in Chinese: it says what the chapters say, and leads to sections that exist."""

import re
from typing import NamedTuple

from mdit_py_plugins.anchors.index import slugify

from notebooks import BOOK, read, texts

GUIDE, GLOSSARY = ((BOOK / name).read_text(encoding="utf-8") for name in ("zh.md", "glossary.md"))
LINK = re.compile(r"\[((?:[^\]`]|`[^`]*`)+)\]\((\w+\.(?:ipynb|md))(?:#([^\s)]+))?\)")
# A number, but not a part of a name, such as H200, ResNet-50, GPT-2 or 7B.
NUMBER = re.compile(r"(?<![A-Za-z\d.,_+-])\d[\d,]*(?:\.\d+)?(?![\d.,]*\d|[A-Za-z_])")
NAMES = re.compile(r"(?:RTX|CUDA|torch|PyTorch) \d[\d.]*")
# How the guide writes a unit, and how chapters do. What has none is only looked for.
UNITS = {
    **{unit: unit for unit in ("TFLOP/s", "TB/s", "GB/s", "GiB", "MiB", "GB", "MB", "µs")},
    "ms": r"ms\b|milliseconds?",
    "s": r"s\b|seconds?",
    "%": r"%|percent",
    "倍": r"x\b|times|of its speed|of what it should be",
    "字节": r"bytes?",
}
UNIT = re.compile(rf"(?: (?:到|和|或) ?[\d.,]+)? ?({'|'.join(UNITS)})(?![A-Za-z])")
TIMED = {"ms", "µs", "s", "倍", "GB/s", "TB/s"}
# What links call a page that is no chapter.
PAGES = {"which_gpu.ipynb": "选卡", "troubleshooting.ipynb": "报错速查"}
NEAR = 45  # characters between a number and its unit: "55 of the 63 GB/s"


class Answer(NamedTuple):
    question: str
    group: str
    said: str
    links: list[tuple[str, str, str]]  # label, file, anchor


def answers(page: str) -> list[Answer]:
    """The questions of the guide's first part, each with what is said and where it leads."""
    found = []
    for group in re.split(r"^## ", page.split("\n## 术语对照表")[0], flags=re.MULTILINE)[1:]:
        name, *entries = re.split(r"^### ", group, flags=re.MULTILINE)
        for entry in entries:
            question, _, body = entry.partition("\n")
            said, _, links = body.strip().partition("→")
            found.append(Answer(question, name.strip(), said.strip(), LINK.findall(links)))
    return found


ANSWERS = answers(GUIDE)


def said_there(name: str, anchor: str) -> str:
    """What a notebook's box and one of its sections say and print, on one line."""
    found, inside = [], 0  # the level of the section's heading, while in it
    for cell in read(BOOK / name).cells:
        if cell.cell_type == "code":
            found += texts(cell) if inside else []
            continue
        for line in cell.source.splitlines():
            if heading := re.match(r"(#{1,3}) (.+)", line):
                level = len(heading[1])
                if slugify(heading[2]) == anchor:
                    inside = level
                elif level <= inside:
                    inside = 0
            if inside or "**In short**" in cell.source:
                found.append(line)
    return " ".join(" ".join(found).split())


def numbers(said: str) -> list[tuple[str, str]]:
    """Each number of an answer with its unit; what several numbers share belongs to each."""
    plain = NAMES.sub("", re.sub(r"`[^`]*`", "", said))
    found = []
    for match in NUMBER.finditer(plain):
        unit = UNIT.match(plain[match.end() :])
        found.append((match[0], unit[1] if unit else ""))
    return found


def is_there(number: str, unit: str, text: str) -> bool:
    """Whether ``text`` has the number and, beside it, the unit."""
    for match in re.finditer(rf"(?<![\d.,]){re.escape(number)}(?![.,]?\d)", text):
        beside = text[max(0, match.start() - NEAR) : match.end() + NEAR]
        if not unit or re.search(rf"(?<![A-Za-z])(?:{UNITS[unit]})", beside):
            return True
    return False


def missing(answer: Answer) -> list[str]:
    """Numbers of an answer that neither the box nor the section of one of its links has."""
    text = " ".join(said_there(name, anchor) for _, name, anchor in answer.links)
    absent = [found for found in numbers(answer.said) if not is_there(*found, text)]
    return [" ".join(filter(None, found)) for found in absent]


def test_every_number_is_the_chapters() -> None:
    unsaid = {a.question: (missing(a), [name for _, name, _ in a.links]) for a in ANSWERS}
    assert {question: found for question, found in unsaid.items() if found[0]} == {}
    stale = [answer._replace(said=answer.said + "又是 98.765 GiB") for answer in ANSWERS]
    assert all("98.765 GiB" in missing(answer) for answer in stale)


def wrong_with(answer: Answer) -> list[str]:
    """The conclusion in bold, then why, in sentences that a breath can carry; then links."""
    said = re.sub(r"`[^`]*`", "code", answer.said)
    longest = max(re.split("[。；]", said), key=len)
    timed = TIMED & {unit for _, unit in numbers(answer.said)}
    wanted = {
        "a question": answer.question.endswith("？"),
        "begins with the conclusion in bold": re.match(r"\*\*[^*]+。\*\* ", answer.said),
        f"is short: {longest}": len(longest) <= 105 and said.count("。") >= 2,
        "links to sections": answer.links and all(anchor for _, _, anchor in answer.links),
        "names the machine": not timed or re.search(r"H[12]00|按规格|按字节", answer.said),
    }
    for label, name, anchor in answer.links:
        cells = [c for c in read(BOOK / name).cells if c.cell_type == "markdown"]
        headings = [h for c in cells for h in re.findall(r"^#{1,3} (.+)$", c.source, re.MULTILINE)]
        wanted[f"{name} has #{anchor}"] = anchor in {slugify(heading) for heading in headings}
        chapter = re.match(r"0(0)_|(\d)(\d)_", name)
        number = ".".join(filter(None, chapter.groups())) if chapter else PAGES[name]
        wanted[f"{label} is called {number}"] = label.startswith(f"{number} · ")
    return [what for what, is_so in wanted.items() if not is_so]


def test_answers_are_short_and_lead_to_sections_that_exist() -> None:
    wrong = {answer.question: wrong_with(answer) for answer in ANSWERS}
    assert {question: found for question, found in wrong.items() if found} == {}


def test_questions_are_grouped_as_the_book_is() -> None:
    groups = {answer.group for answer in ANSWERS}
    assert 30 <= len(ANSWERS) <= 80 and 8 <= len(groups) <= 12
    assert len({answer.question for answer in ANSWERS}) == len(ANSWERS)


def test_every_line_in_chinese_explains_a_term_of_the_glossary() -> None:
    """A term may be newer than the guide; what the guide explains is in the glossary's order."""
    terms = re.findall(r"^(\S.*)\n  \S", GLOSSARY.split("```{glossary}")[1], re.MULTILINE)
    table = GUIDE.split("\n## 术语对照表")[1]
    rows = re.findall(r"^\| \{term\}`([^`]+)` \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    explained = [english for english, _, _ in rows]
    assert explained == [term for term in terms if term in explained] and len(rows) > 100
    for english, chinese, meaning in rows:
        assert re.search(r"[\u4e00-\u9fff]", meaning), f"{english}: say it in Chinese"
        assert chinese.strip() and len(meaning) < 60, english
