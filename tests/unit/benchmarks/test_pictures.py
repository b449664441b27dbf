"""The pictures of measurements: each is that of the newest result, is on a page, and follows the numbers."""

import re
from xml.etree import ElementTree

from benchmarks.figures.figure import ROOT
from benchmarks.pictures.__main__ import ASSETS, pictures
from benchmarks.pictures.measured import routing, scaling
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


def test_a_fleet_has_each_number_of_engines_from_the_second_of_its_change() -> None:
    result = {"hours": None, "seconds": 3600.0, "requests_per_second": [1.0, 4.0], "fixed": 3,
              "asked": [[0.0, 1], [900.0, 4]], "ready": [[0.0, 1], [1800.0, 4]]}  # fmt: skip
    drawn = re.findall(r'<path class="line (\w)[^"]*" d="M64\.0 ([\d.]+)([^"]*)"', scaling(result))
    height = {kind: float(up) for kind, up, _ in drawn}
    assert {kind: rest for kind, _, rest in drawn} == {
        "c": " H824.0",
        "b": f" H254.0 V{height['c'] - (height['a'] - height['c']) / 2:.1f} H824.0",
        "a": f" H444.0 V{height['c'] - (height['a'] - height['c']) / 2:.1f} H824.0",
    }


def test_a_terminal_shows_the_screens_of_a_page_as_they_stand() -> None:
    lines = session(PAGE, left_out=("mambaserve plan",))
    assert lines == ["$ echo <1>", "<1>"]
    svg = picture("A title", lines)
    assert [line.text for line in ElementTree.fromstring(svg).iter() if line.text == "<1>"] == ["<1>"]
