"""What the contracts can refuse.

ContractError
├── InvalidQuantity    not a Kubernetes quantity (80Gi, 500m, 4)
├── InvalidDuration    not a duration (300s, 5m, 500ms)
├── InvalidModelUri    not one of the four kinds of model URI
├── UnknownProfile     spec.resources.profile names none that there is
├── InvalidProfile     a profile and what the object says itself contradict each other
└── InvalidDocument    a YAML document that is no valid MambaDeployment, or no profiles: file, document, name
                       and field

All are `ValueError`s, so pydantic reports the first three at the field where they were found. The CLI turns
`InvalidDocument` into exit code 2, the operator into the condition reason `InvalidSpec`.
"""


class ContractError(ValueError):
    """Base: the message says what is wrong and what would be right."""

    condition_reason = "InvalidSpec"


class InvalidQuantity(ContractError):
    """Not a Kubernetes quantity."""


class InvalidDuration(ContractError):
    """Not a duration."""


class InvalidModelUri(ContractError):
    """Not a model URI."""


class UnknownProfile(ContractError):
    """`spec.resources.profile` names none that there is."""


class InvalidProfile(ContractError):
    """A profile and what the object says itself contradict each other."""


class InvalidDocument(ContractError):
    """A YAML document that is no valid MambaDeployment, or no profiles; one line per problem."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(problems))
