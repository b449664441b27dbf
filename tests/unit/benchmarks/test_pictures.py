"""The pictures of measurements: each is that of the newest result, is on a page, and follows the numbers."""

import re
from xml.etree import ElementTree

from benchmarks.figures.figure import ROOT
from benchmarks.pictures.__main__ import ASSETS, pictures
from benchmarks.pictures.measured import routing
from benchmarks.pictures.terminal import picture, session

PAGE = "```console\n$ mambaserve plan x\nno\n```\n\n```console\n$ echo <1>\n<1>\n```\n"


def test_each_picture_is_that_of_the_newest_result_and_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for name, svg in pictures().items():
        assert (ASSETS / f"{name}.svg").read_text() == svg, "run `python -m benchmarks.pictures`"
        assert f"/{name}.svg)" in pages
        ElementTree.fromstring(svg)


def test_a_bar_is_as_high_as_its_number_and_carries_it() -> None:
    rows = [
        {"workload": workload, "knowledge": way, "relative": 1.0 if way == "resumable" else 2.0}
        for workload in ("retrieval", "chat", "mooncake_fast25_synthetic", "documents", "agents")
        for way in ("load", "attention", "resumable")
    ]
    svg = routing({"rows": rows})
    heights = [float(high) for high in re.findall(r'<rect class="\w" [^>]*height="([\d.]+)"', svg)]
    assert heights[:3] == [heights[0], heights[0], heights[0] / 2]
    assert svg.count(">2.00</text>") == 10


def test_a_terminal_shows_the_screens_of_a_page_as_they_stand() -> None:
    lines = session(PAGE, left_out=("mambaserve plan",))
    assert lines == ["$ echo <1>", "<1>"]
    svg = picture("A title", lines)
    assert [line.text for line in ElementTree.fromstring(svg).iter() if line.text == "<1>"] == ["<1>"]
