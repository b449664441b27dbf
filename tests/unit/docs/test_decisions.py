"""Decision records: few enough to be read, each with a status and the same sections."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs/adr"
RECORDS = sorted(FOLDER.glob("*.md"))
SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]
STATUS = re.compile(r"^Status: (proposed|accepted|rejected|superseded by \[)", re.MULTILINE)


def test_there_are_at_most_forty_decision_records() -> None:
    assert 1 <= len(RECORDS) <= 40, "move what does not shape the whole into docs/notes"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_record_has_its_number_a_status_and_the_four_sections(record: Path) -> None:
    text = record.read_text()
    assert re.match(rf"# ADR {record.name[:4]}: \S", text)
    assert len(STATUS.findall(text)) == 1
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS


def test_numbers_of_decision_records_are_used_once() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(set(numbers)) == len(numbers)
