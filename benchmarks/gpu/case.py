"""One case of a stage, and how a case ends other than well. Free of torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Numbers = dict[str, Any]
"""Results of a case, as JSON. The entry "headline" (name -> number) goes into the summary as well."""


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is tried once. `run` returns its numbers, or raises."""

    name: str
    run: Callable[[], Numbers]
    seconds: float | None = None
    """Limit for this case; None is the usual one."""


class Absent(Exception):
    """The machine lacks what the case needs. The case is no failure."""


class Wrong(Exception):
    """A result is not what it should be. `numbers` says by how much."""

    def __init__(self, message: str, numbers: Numbers | None = None) -> None:
        super().__init__(message)
        self.numbers = numbers or {}


@dataclass(frozen=True, slots=True)
class Job:
    """The supervisor's order to a child, sent at its start."""

    stage: str
    device: str
    """cuda or cpu"""
    small: bool
    """Small models and few cases, for a machine without a GPU."""
    tried: frozenset[str]
    """Names of the cases that earlier children of this stage began."""
    left_out: tuple[str, ...]
    """Operators that the reference computes: their kernels did not compile or were wrong."""
