"""Errors of planning, and of reading a model's configuration.

BudgetError
├── UnusableInput         exit 2, condition reason InvalidSpec: an input the planner cannot use, named
└── InsufficientMemory    exit 3, condition reason DoesNotFit: the memory is too small; the message says by
                          how much

ModelConfigError          exit 2; a process that meets it does not start and serves no HTTP. The message names
│                         the source, the field and what is accepted
├── UnknownArchitecture   no adapter for `model_type` / `architectures`
├── MissingField          a needed field is absent under all of its known names
├── WrongField            a field has a value of the wrong type or outside its range
└── UnreadableConfig      the file is absent or is not a JSON object
"""

from dataclasses import dataclass

from mamba_settings.byte_size import binary_size


@dataclass(frozen=True, slots=True)
class FittingSize:
    """The smallest GPU memory on the market that would hold an engine, and the largest that there is."""

    smallest: int | None
    """Bytes of the smallest size on the market that suffices; None if no size does."""
    largest: int
    """Bytes of the largest size on the market."""

    def words(self) -> str:
        """Return the smallest size that suffices, as a sentence without its full stop."""
        if self.smallest is None:
            return f"No GPU size holds it: the largest is {binary_size(self.largest)}"
        return f"The smallest GPU size that holds it is {binary_size(self.smallest)}"


class BudgetError(ValueError):
    """Base class of the errors of planning.

    `exit_code` is the exit status of the command line, `condition_reason` the reason in the object's status.
    """

    exit_code = 1
    condition_reason = "PlanFailed"


class UnusableInput(BudgetError):
    """An input that cannot be planned with; the message names it and a usable value."""

    exit_code = 2
    condition_reason = "InvalidSpec"


class InsufficientMemory(BudgetError):
    """A budget smaller than weights, workspace and one sequence. `need` and `have` are bytes.

    `ways` are changes of settings that would make the engine fit. `sizes` names the larger GPU that would
    suffice; None if GPU sizes do not apply.
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
        """Return a copy of the error whose message also says what would make the engine fit.

        `ways` are changes of settings. `sizes` names the smallest GPU that would suffice, if there is one;
        None if GPU sizes do not apply.
        """
        return InsufficientMemory(self.message, self.need, self.have, sizes, ways)


class ModelConfigError(ValueError):
    """Base class of the errors of a model's configuration.

    `source` is the file (or `spec.model.config`), and `field` the name of the field, if one is to blame.
    """

    exit_code = 2

    def __init__(self, source: str, message: str, field: str | None = None) -> None:
        self.source = source
        self.field = field
        super().__init__(f"{source}: {message}")


class UnknownArchitecture(ModelConfigError):
    """A model of an architecture that this version cannot read."""


class MissingField(ModelConfigError):
    """A required field that is absent."""


class WrongField(ModelConfigError):
    """A field of a model's configuration has a value that cannot be used."""


class UnreadableConfig(ModelConfigError):
    """A configuration that cannot be read at all."""
