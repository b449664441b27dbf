"""Report of a run with requests while everything changes."""

import xml.etree.ElementTree as ET
from typing import Any

from disruptions import Course, Phase, Request
from drop_report import markdown, summary, svg

SVG = "{http://www.w3.org/2000/svg}"


def course(*requests: Request) -> Course:
    deployed: Any = None
    phases = [Phase("rolled", 101.0, 103.0), Phase("evicted", 104.0, 105.0), Phase("rolled", 106.0, 107.0)]
    return Course(deployed, phases, list(requests))


FINE = Request(100.0, 100.5, 102.0, True, None)
WHOLE = Request(104.5, 104.6, 104.6, False, None)
FAILED = Request(102.5, None, 104.5, True, "APIError: gone")


def test_a_request_counts_in_each_phase_that_it_saw_and_a_failed_one_is_told_with_them() -> None:
    made = course(FINE, WHOLE, FAILED)

    found = summary(made, streams=2, rate=5)

    assert (found["requests"], found["streamed"], found["failed"]) == (3, 2, 1)
    assert [(one["requests"], one["failed"]) for one in found["phases"]] == [(2, 1), (2, 1), (0, 0)]
    assert found["failures"] == ["rolled, evicted: 2.0 s: APIError: gone"]
    assert found["first_piece_max"] == 0.5
    assert any("1 of 3 requests failed" in line for line in markdown(found))


def test_a_course_that_ended_early_says_so() -> None:
    made = course(FINE)
    made.broken = "waited 240 s for 1 engine pods"

    assert any("240 s" in line for line in markdown(summary(made, streams=1, rate=1)))


def test_the_picture_shows_each_second_in_which_one_failed_and_names_a_repeated_phase_once() -> None:
    picture = ET.fromstring(svg(course(FINE, WHOLE, FAILED)))

    red = [one for one in picture.iter(f"{SVG}rect") if one.get("fill") == "#d02020"]
    assert len(red) == 1
    texts = [one.text for one in picture.iter(f"{SVG}text")]
    assert texts.count("rolled") == texts.count("evicted") == 1
