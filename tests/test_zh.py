"""The guide in Chinese: it says what the chapters say, and leads to sections that exist."""

import re
from typing import NamedTuple

import pytest
from mdit_py_plugins.anchors.index import slugify

from notebooks import BOOK, read, texts

GUIDE = (BOOK / "zh.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[((?:[^\]`]|`[^`]*`)+)\]\((\w+\.(?:ipynb|md))(?:#([^\s)]+))?\)")
# A number, but not a part of a name, such as H200, ResNet-50, GPT-2 or 7B.
NUMBER = re.compile(r"(?<![A-Za-z\d.,_+-])\d[\d,]*(?:\.\d+)?(?![\d.,]*\d|[A-Za-z_])")
NAMES = re.compile(r"(?:RTX|CUDA|torch|PyTorch) \d[\d.]*")
# How the guide writes a unit, and how chapters do. What has none is only looked for.
UNITS = {
    "TFLOP/s": r"TFLOP/s",
    "TB/s": r"TB/s",
    "GB/s": r"GB/s",
    "GiB": r"GiB",
    "MiB": r"MiB",
    "GB": r"GB",
    "MB": r"MB",
    "ms": r"ms\b|milliseconds?",
    "µs": r"µs",
    "s": r"s\b|seconds?",
    "%": r"%|percent",
    "倍": r"x\b|times|of its speed|of what it should be",
    "字节": r"bytes?",
}
UNIT = re.compile(rf"(?: (?:到|和|或) ?[\d.,]+)? ?({'|'.join(UNITS)})(?![A-Za-z])")
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


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: a.question)
def test_every_number_is_the_chapters(answer) -> None:
    assert missing(answer) == [], f"{[name for _, name, _ in answer.links]} do not say so"


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: a.question)
def test_answers_are_short_and_lead_on(answer) -> None:
    """The conclusion in bold, then why: two sentences, and a link to a section."""
    assert answer.question.endswith("？"), "a question"
    assert re.match(r"\*\*[^*]+。\*\* ", answer.said), "begin with the conclusion in bold"
    assert len(re.findall("。", answer.said)) == 2, "two sentences"
    assert answer.links and all(anchor for _, _, anchor in answer.links)
    timed = [
        unit for _, unit in numbers(answer.said) if unit in ("ms", "µs", "s", "倍", "GB/s", "TB/s")
    ]
    assert not timed or re.search(r"H[12]00|按规格", answer.said), "on which machine?"


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: a.question)
def test_links_lead_to_sections_that_exist(answer) -> None:
    for label, name, anchor in answer.links:
        notebook = read(BOOK / name)
        prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
        headings = re.findall(r"^#{1,3} (.+)$", prose, re.MULTILINE)
        assert anchor in {slugify(heading) for heading in headings}, name
        chapter = re.match(r"0(0)_|(\d)(\d)_", name)
        number = ".".join(filter(None, chapter.groups())) if chapter else PAGES[name]
        assert label.startswith(f"{number} · "), label


def test_questions_are_grouped_as_the_book_is() -> None:
    groups = list(dict.fromkeys(answer.group for answer in ANSWERS))
    assert 30 <= len(ANSWERS) <= 60 and 8 <= len(groups) <= 12
    assert len({answer.question for answer in ANSWERS}) == len(ANSWERS)


# --- the glossary in two languages ---------------------------------------------------------------


def terms(glossary: str) -> list[str]:
    return re.findall(r"^(\S.*)\n  \S", glossary.split("```{glossary}")[1], re.MULTILINE)


def lines(page: str) -> dict[str, tuple[str, str]]:
    """Of each term of the guide's table: its name in Chinese, and what it means."""
    table = page.split("\n## 术语对照表")[1]
    rows = re.findall(r"^\| \{term\}`([^`]+)` \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    assert len(rows) == len({english for english, _, _ in rows}), "a term has two lines"
    return {english: (chinese, meaning) for english, chinese, meaning in rows}


def unknown(glossary: str, page: str) -> set[str]:
    return lines(page).keys() - set(terms(glossary))


def test_every_line_in_chinese_explains_a_term_of_the_glossary() -> None:
    """A term may be newer than the guide; what the guide explains is in the glossary's order."""
    glossary = (BOOK / "glossary.md").read_text(encoding="utf-8")
    assert unknown(glossary, GUIDE) == set(), "book/zh.md explains what the glossary does not"
    assert list(lines(GUIDE)) == [term for term in terms(glossary) if term in lines(GUIDE)]
    assert len(lines(GUIDE)) > 100
    for english, (chinese, meaning) in lines(GUIDE).items():
        assert re.search(r"[\u4e00-\u9fff]", meaning), f"{english}: say it in Chinese"
        assert chinese.strip() and len(meaning) < 60, english


# --- these tests, tested -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("在 H200 上是 55 GB/s，7 到 14 GB/s", [("55", "GB/s"), ("7", "GB/s"), ("14", "GB/s")]),
        ("RTX 4090、ResNet-50、GPT-2、7B、TF32、`x[3]`", []),
        ("每秒 2,116 张，占 0.4%，快 3.0 倍。", [("2,116", ""), ("0.4", "%"), ("3.0", "倍")]),
        ("CUDA 13 要 580 的驱动", [("580", "")]),
    ],
)
def test_numbers_of_an_answer(said, found) -> None:
    assert numbers(said) == found


@pytest.mark.parametrize(
    ("number", "unit", "same"),
    [
        ("55", "GB/s", True),
        ("5", "GB/s", False),
        ("63", "ms", False),
        ("1.5", "", False),
        ("12.6", "倍", True),
        ("12.6", "%", False),
    ],
)
def test_a_number_is_there_with_its_unit(number, unit, same) -> None:
    text = "55 of the 63 GB/s that the link carries; 11.5 and 1.55, " + "." * 50 + " 12.6 times"
    assert is_there(number, unit, text) is same


def test_a_stale_number_and_a_term_that_is_gone_are_found() -> None:
    stale = [answer._replace(said=answer.said + "又是 98.765 GiB") for answer in ANSWERS]
    assert all("98.765 GiB" in missing(answer) for answer in stale)
    glossary = (BOOK / "glossary.md").read_text(encoding="utf-8")
    assert unknown(glossary.replace("\nwheel\n", "\nwheels\n"), GUIDE) == {"wheel"}
