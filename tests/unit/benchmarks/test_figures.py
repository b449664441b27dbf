"""The numbers of published pages: each is that of a kept result, and a stale one is noticed."""

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks.figures.figure import ROOT, Figures, agrees, at, complaints, lines_of, numbers_of
from benchmarks.figures.prose import measured_numbers, pages, unkept
from benchmarks.figures.published import PERFORMANCE, PUBLISHED, README

from parsed_yaml import load_yaml

CHOSEN: Mapping[str, Mapping[str, str]] = load_yaml((ROOT / "benchmarks/figures/chosen.yaml").read_text())
PAGE = (
    "| what | ours | others |\n| --- | --- | --- |\n"
    "| speed of 8 rows | **1,041** | 12.5 `q8_0`, [all](x2.md) |\n"
)


def figures(*paths: tuple[str, ...], sources: tuple[str, ...] = ("2026-01-02-speed",)) -> Figures:
    return Figures("page.md", "speed of", "make speed", sources, tuple(at(*path) for path in paths))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "2026-01-02-speed.json").write_text(
        json.dumps({"ours": [900, 1040.6, 2000], "theirs": 12.54})
    )
    return tmp_path


def test_numbers_of_pages_are_those_of_kept_results() -> None:
    stale = [
        line
        for each in PUBLISHED
        for line in complaints(each, (ROOT / each.page).read_text(encoding="utf-8"))
    ]
    assert stale == []


@pytest.mark.parametrize("page", [README, PERFORMANCE])
def test_each_row_that_compares_and_each_text_with_a_result_has_its_figures(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    compared = text.partition("## How it compares")[2].partition("\n## ")[0] if page == README else text
    begins = tuple(each.begin for each in PUBLISHED if each.page == page)
    lines = [line for line in lines_of(compared) if line.startswith("| ") or "benchmarks/results" in line]
    left_out = [
        line
        for line in lines
        if numbers_of(line)
        and not line.removeprefix("| ").startswith(begins)
        and "The picture shows" not in line
    ]
    assert left_out == []
    assert len(lines) > 6


def test_no_page_has_a_measured_number_that_nothing_keeps() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    assert len(texts) > 90
    assert [
        (page, line[:80], numbers)
        for page, text in texts.items()
        for line, numbers in unkept(page, text, PUBLISHED, CHOSEN)
    ] == []


def test_each_number_that_somebody_chose_is_the_one_of_the_code() -> None:
    wrong = []
    for page, numbers in CHOSEN.items():
        for number, source in numbers.items():
            file, colons, rest = source.partition("::")
            if not colons:
                assert re.match(r"(an? |the |arithmetic )", source), f"{page}: {number} has no reason"
                continue
            text, _, other = rest.partition(" = ")
            digits = re.escape((other or number).split()[0])
            lines = [line for line in (ROOT / file).read_text("utf-8").splitlines() if text in line]
            if not any(re.search(rf"(?<![\d.]){digits}(?:\.0+)?(?![\d]|\.\d)", line) for line in lines):
                wrong.append(f"{page}: {number} is not at {source}")
    assert wrong == []


def test_each_number_that_somebody_chose_is_on_its_page() -> None:
    assert [
        (page, number)
        for page, numbers in CHOSEN.items()
        for line in ["\n".join(lines_of((ROOT / page).read_text(encoding="utf-8")))]
        for number in numbers
        if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", line)
    ] == []


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("Reads take about 1.6 times as long, or 40 ms.", ["1.6 times", "40 ms"]),
        ("| a row | **2.5** | 3 engines |", ["2.5"]),
        ("| a row | 12.5 % | 30 GiB, 1.5 MB |", ["12.5 %"]),
        ("`--timeout 40 s`, Python 3.11, 4 engines and [a page](x-2.5.md)", []),
        ("It computes 1,312 tokens ([results](../../benchmarks/results/x.md)).", ["1,312"]),
        ("Answers come at 41 tokens/s.", ["41 tokens/s"]),
        ("It has 0.97 of the speed, on Python 3.11.", ["0.97"]),
    ],
)
def test_a_number_with_a_unit_of_measurement_counts_as_measured(line: str, numbers: list[str]) -> None:
    assert measured_numbers(line) == numbers


def test_a_new_number_is_noticed_unless_it_is_kept_or_chosen() -> None:
    text = f"{PAGE}\nIt is 3 times faster.\n\n```sh\nsleep 4 s\n```\n"
    assert list(unkept("page.md", text, [figures(("ours",))], {"page.md": {}})) == [
        ("It is 3 times faster.", ["3 times"])
    ]
    assert list(unkept("page.md", text, [figures(("ours",))], {"page.md": {"3 times": "an example"}})) == []


def test_each_command_that_measures_again_exists() -> None:
    for command in {each.command for each in PUBLISHED}:
        words = command.split()
        if words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        else:
            assert importlib.util.find_spec(words[2]) is not None, command


def test_a_line_that_agrees_is_left_alone(results: Path) -> None:
    assert complaints(figures(("ours",), ("theirs",)), PAGE, results) == []


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (PAGE.replace("1,041", "1,042"), "1,042 is 1041 in 2026-01-02-speed"),
        (PAGE.replace("12.5 ", "12.5, 13 "), "are kept"),
        (PAGE.replace("speed of", "pace of"), "0 lines begin so"),
    ],
    ids=["another number", "a number without a result", "no such line"],
)
def test_a_line_that_has_changed_is_named(results: Path, page: str, complaint: str) -> None:
    [said] = complaints(figures(("ours",), ("theirs",)), page, results)
    assert complaint in said


def test_a_newer_result_makes_a_line_stale_if_it_has_all_its_numbers(results: Path) -> None:
    kept = figures(("ours",), ("theirs",))
    newer = results / "2026-01-03-speed.json"
    newer.write_text(json.dumps({"ours": [1]}))
    assert complaints(kept, PAGE, results) == []
    newer.write_text(json.dumps({"ours": [1], "theirs": 2}))
    [said] = complaints(kept, PAGE, results)
    assert said.endswith("2026-01-03-speed is newer")


def test_as_many_digits_count_as_are_written() -> None:
    assert agrees("0.28", 0.2849)
    assert not agrees("0.28", 0.2851)
    assert agrees("17,640", 17_640)
