"""`ApiModel`, the base of every part of a MambaDeployment, and `Rule`, a check beyond one field's own bounds.

A rule is written once: its CEL form goes into the CRD, its Python form runs in local mode and in the CLI, and
both give the same message.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import PydanticCustomError

FreeForm = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""An object that Kubernetes itself defines (pod template, affinity): kept as it is."""
ObjectName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]  # fmt: skip
Text = Annotated[str, Field(min_length=1, max_length=1024)]
LongText = Annotated[str, Field(max_length=4096)]


@dataclass(frozen=True, slots=True)
class Rule:
    """One check over the fields of a model, in CEL and in Python."""

    cel: str
    """CEL expression over `self` that must be true."""
    message: str
    """What is wrong and what to do, for a person."""
    holds: Callable[[Any], bool]
    """The same check in Python."""


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """One check of what may become of a model's fields. The API server alone knows what was before."""

    cel: str
    """CEL expression over `self` and `oldSelf` that must be true."""
    message: str
    """What is wrong and what to do, for a person."""


def refused(field: str, advice: str) -> Rule:
    """Any value of an optional field that stands in the contract and that this version does not fulfil.

    `field` is its YAML name inside the model; `advice` says what is missing and what to do instead.
    """
    attribute = to_snake(field)
    return Rule(
        cel=f"!has(self.{field})",
        message=f"{field} is refused by this version: {advice}",
        holds=lambda self: getattr(self, attribute) is None,
    )


RULES_LATER = {"rules": "later"}
"""Context of a validation that leaves rules to `broken_rules`."""


class ApiModel(BaseModel):
    """Frozen, camelCase on the wire, unknown fields refused, described by attribute docstrings."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
    rules: ClassVar[tuple[Rule, ...]] = ()
    change_rules: ClassVar[tuple[ChangeRule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """A null is an absent field, as it is for the API server: `engine:` with nothing below is fine."""
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @model_validator(mode="after")
    def _check_rules(self, info: ValidationInfo) -> Self:
        if info.context is RULES_LATER:
            return self
        broken = [rule.message for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError("rule", "{message}", {"message": "; ".join(broken)})
        return self

    def broken_rules(
        self, location: tuple[str | int, ...] = ()
    ) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield where a rule is broken and what is wrong, at every depth: validation itself asks no
        rule above a broken part."""
        for name, about in type(self).model_fields.items():
            place, value = (*location, about.alias or name), getattr(self, name)
            if isinstance(value, ApiModel):
                yield from value.broken_rules(place)
            elif isinstance(value, tuple | list):
                for at, each in enumerate(value):
                    if isinstance(each, ApiModel):
                        yield from each.broken_rules((*place, at))
        if broken := [rule.message for rule in self.rules if not rule.holds(self)]:
            yield location, "; ".join(broken)

    def manifest(self) -> dict[str, Any]:
        """Plain JSON data in the spelling of the API, without absent fields."""
        return self.model_dump(mode="json", exclude_none=True)


class StatusModel(ApiModel):
    """Part of a status: fields that a newer operator wrote are dropped when read, never refused."""

    model_config = ConfigDict(extra="ignore")


SecretKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class SecretRef(ApiModel):
    """A Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""


class SecretKeyRef(SecretRef):
    """One key of a Secret in the same namespace."""

    key: SecretKey = "token"
    """Key inside the Secret."""
