"""Errors of the contracts: invalid documents and values.

ContractError
├── InvalidQuantity    not a Kubernetes quantity (80Gi, 500m, 4)
├── InvalidDuration    not a duration (300s, 5m, 500ms)
├── InvalidModelUri    not one of the kinds of model URI
├── UnknownProfile     spec.resources.profile names a profile that does not exist
├── InvalidProfile     a profile and the values of the object contradict each other
└── InvalidDocument    a YAML document that is no valid MambaDeployment, or no profiles: file, document, name
                       and field

All are `ValueError`s, so pydantic reports the first three at the field that has the value. The CLI turns
`InvalidDocument` into exit code 2, the operator into the condition reason `InvalidSpec`.
"""


class ContractError(ValueError):
    """Base class of the errors of this package.

    The message says what is wrong, and which values would be right.
    """

    condition_reason = "InvalidSpec"


class InvalidQuantity(ContractError):
    """A text that is no Kubernetes quantity."""


class InvalidDuration(ContractError):
    """A text that is no duration."""


class InvalidModelUri(ContractError):
    """A text that is no model URI."""


class UnknownProfile(ContractError):
    """A name in `spec.resources.profile` that is the name of no profile."""


class InvalidProfile(ContractError):
    """A profile that contradicts the values of the object."""


class InvalidDocument(ContractError):
    """A YAML document that is no valid MambaDeployment, or no profiles; one line per problem."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(problems))
