"""What planning can fail with.

BudgetError
├── UnusableInput       exit 2, condition reason InvalidSpec: an input the planner cannot use, named
└── InsufficientMemory  exit 3, condition reason DoesNotFit: the memory is too small; the message says by how
much
"""

from dataclasses import dataclass

from mamba_settings.byte_size import binary_size


@dataclass(frozen=True, slots=True)
class FittingSize:
    """The smallest memory, of those that GPUs are sold with, that holds an engine; bytes."""

    smallest: int | None
    """None = no size does."""
    largest: int
    """Of all sizes."""

    def words(self) -> str:
        """As a sentence without its end."""
        if self.smallest is None:
            return f"No GPU size holds it: the largest is {binary_size(self.largest)}"
        return f"The smallest GPU size that holds it is {binary_size(self.smallest)}"


class BudgetError(ValueError):
    """Base. `exit_code` ends the command line, `condition_reason` goes into the status."""

    exit_code = 1
    condition_reason = "PlanFailed"


class UnusableInput(BudgetError):
    """An input is outside of what can be planned; the message names it and what would do."""

    exit_code = 2
    condition_reason = "InvalidSpec"


class InsufficientMemory(BudgetError):
    """Weights, workspace and one sequence need more than the budget. `need` and `have` are bytes.

    `ways` are changes of settings that would do; `sizes` says of larger GPUs which would do, None = none was
    looked at, as without a GPU.
    """

    exit_code = 3
    condition_reason = "DoesNotFit"

    def __init__(
        self, message: str, need: int, have: int, sizes: FittingSize | None = None, ways: tuple[str, ...] = ()
    ) -> None:
        self.message = message
        self.need = need
        self.have = have
        self.sizes = sizes
        sentences = [message]
        if ways:
            sentences.append(f"What would fit: {'; or '.join(ways)}")
        if sizes is not None:
            sentences.append(sizes.words())
        super().__init__(". ".join(sentences))

    def with_remedies(self, ways: tuple[str, ...], sizes: FittingSize | None) -> "InsufficientMemory":
        """Return the same error with what would fit."""
        return InsufficientMemory(self.message, self.need, self.have, sizes, ways)
