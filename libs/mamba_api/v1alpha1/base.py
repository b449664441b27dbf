"""`ApiModel`, the base of every part of a MambaDeployment, and `Rule`, a check beyond one field's own bounds.

A rule is written once: its CEL form goes into the CRD, its Python form runs in local mode and in the CLI, and
both give the same message.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

FreeForm = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""Object that Kubernetes itself defines (pod template, affinity), stored unchanged."""
ObjectName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]  # fmt: skip
Text = Annotated[str, Field(min_length=1, max_length=1024)]
LongText = Annotated[str, Field(max_length=4096)]


def map_by(key: str) -> dict[str, Any]:
    """Return the part of a list's schema by which the API server tells items apart: by the field `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def each_once(attribute: str) -> AfterValidator:
    """Return the check in Python that corresponds to `map_by`: the values of `attribute` are unique."""

    def check(items: list[Any]) -> list[Any]:
        values = [getattr(item, attribute) for item in items]
        duplicate = next((value for value in values if values.count(value) > 1), None)
        if duplicate is not None:
            raise ValueError(f"{duplicate} is set twice: remove one")
        return items

    return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class Rule:
    """A check over the fields of a model, in CEL and in Python."""

    cel: str
    """CEL expression over `self` that must be true."""
    message: str
    """Description of the problem and its remedy, for a person."""
    holds: Callable[[Any], bool]
    """Python form of the same check."""


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """A check of how a model's fields may change. Only the API server knows the previous object."""

    cel: str
    """CEL expression over `self` and `oldSelf` that must be true."""
    message: str
    """Description of the problem and its remedy, for a person."""


RULES_LATER = {"rules": "later"}
"""Context of a validation that leaves rules to `broken_rules`."""


class ApiModel(BaseModel):
    """A part of a MambaDeployment: frozen, camelCase on the wire, no unknown fields.

    Attribute docstrings describe the fields.
    """

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
        """Treat a null as an absent field, as the API server does: `engine:` with nothing below is fine."""
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
        """Yield the location and message of each broken rule, at every depth.

        Validation itself checks no rule above a part that breaks one.
        """
        for name, field in type(self).model_fields.items():
            path, value = (*location, field.alias or name), getattr(self, name)
            if isinstance(value, ApiModel):
                yield from value.broken_rules(path)
            elif isinstance(value, tuple | list):
                for index, item in enumerate(value):
                    if isinstance(item, ApiModel):
                        yield from item.broken_rules((*path, index))
        if broken := [rule.message for rule in self.rules if not rule.holds(self)]:
            yield location, "; ".join(broken)

    def manifest(self) -> dict[str, Any]:
        """Return plain JSON data in the spelling of the API, without absent fields."""
        return self.model_dump(mode="json", exclude_none=True)


class StatusModel(ApiModel):
    """A part of a status. When it is read, fields that a newer operator wrote are dropped, never refused."""

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
