"""Quantities and durations keep their spelling and mean what Kubernetes means by them."""

from decimal import Decimal

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from mamba_api.errors import InvalidDuration, InvalidQuantity
from mamba_api.quantity import SUFFIXES, UNITS, Duration, Quantity, parse_duration, parse_quantity
from parsed_yaml import load_yaml


class Sized(BaseModel):
    size: Quantity = Quantity("1Gi")
    wait: Duration = Duration("5m")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80Gi", Decimal(80 * 2**30)),
        ("512Mi", Decimal(512 * 2**20)),
        ("1.5Gi", Decimal(3 * 2**29)),
        ("500m", Decimal("0.5")),
        ("4", Decimal(4)),
        ("0", Decimal(0)),
        ("2k", Decimal(2000)),
        ("3M", Decimal(3_000_000)),
        ("1E", Decimal(10**18)),
        ("1Ei", Decimal(2**60)),
        ("7n", Decimal("7e-9")),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: str, value: Decimal) -> None:
    assert parse_quantity(text) == value
    assert Quantity(text).value == value


def test_a_plain_integer_is_a_number_of_units() -> None:
    assert parse_quantity(85899345920) == 80 * 2**30
    assert Quantity(2).bytes == 2


def test_bytes_are_rounded_up() -> None:
    assert Quantity("1500m").bytes == 2
    assert Quantity("1m").bytes == 1
    assert Quantity("0").bytes == 0


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1Gi", "+1", "1 Gi", "1e3x", ".5Gi", "1.", "0x10", "١", "9" * 40]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity, match=r"no quantity|unknown unit"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("80GB", "80G"), ("80GiB", "80Gi"), ("80gi", "80Gi"), ("5K", "5k"), ("1mib", "1Mi")]
)
def test_a_unit_that_is_nearly_right_is_answered_with_the_right_one(text: str, hint: str) -> None:
    with pytest.raises(InvalidQuantity, match=f"did you mean {hint}\\?"):
        parse_quantity(text)


def test_a_unit_that_is_nothing_like_one_lists_the_units() -> None:
    with pytest.raises(InvalidQuantity, match=r"'bananas'.*Ki, Mi, Gi"):
        parse_quantity("3bananas")


def test_every_suffix_is_accepted_by_the_type_and_by_the_pattern() -> None:
    for suffix, factor in SUFFIXES.items():
        assert Quantity(f"3{suffix}").value == 3 * factor


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300s", 300.0), ("5m", 300.0), ("500ms", 0.5), ("1h30m", 5400.0), ("1.5s", 1.5), ("0s", 0.0),
        ("1h1m1s1ms", 3661.001),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_of_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert Duration(text).seconds == pytest.approx(seconds)


def test_every_unit_of_time_is_accepted() -> None:
    for unit, factor in UNITS.items():
        assert Duration(f"2{unit}").seconds == pytest.approx(float(2 * factor))


@pytest.mark.parametrize("text", ["", "300", "5 m", "-5s", "s", "5d", "1s ", "5M", "1s" * 20])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidDuration, match=r"300s"):
        Duration(text)


def test_the_spelling_survives_a_round_trip() -> None:
    sized = Sized.model_validate({"size": "0.50Gi", "wait": "90s"})
    assert sized.model_dump() == {"size": "0.50Gi", "wait": "90s"}
    assert sized.model_dump_json() == '{"size":"0.50Gi","wait":"90s"}'


def test_dumped_values_are_plain_strings_that_yaml_can_write() -> None:
    dumped = Sized().model_dump()
    assert type(dumped["size"]) is str
    assert load_yaml(yaml.safe_dump(dumped)) == {"size": "1Gi", "wait": "5m"}


@pytest.mark.parametrize("value", [True, 1.5, [], {}, None])
def test_other_types_are_no_quantity(value: object) -> None:
    with pytest.raises(ValidationError, match="80Gi"):
        Sized.model_validate({"size": value})


@pytest.mark.parametrize("value", [5, 1.5, True, [], None])
def test_a_duration_without_a_unit_is_refused_because_seconds_would_be_a_guess(value: object) -> None:
    with pytest.raises(ValidationError, match="duration"):
        Sized.model_validate({"wait": value})
