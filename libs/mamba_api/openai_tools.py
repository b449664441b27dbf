"""Tools of a chat request, and the choice which of them the model may or must call.

`openai` builds its chat request from them. A custom tool takes a text. Models know only functions, so a
custom tool reaches them as a function of one argument, and its calls are returned as calls of a custom tool.
Pure.
"""

from typing import Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mamba_api.openai_fields import MAX_TOOLS, Strict

INPUT = "input"
"""Argument of a custom tool in the form that models see."""


class ToolName(Strict):
    """The name of a tool."""

    name: str = Field(min_length=1)
    """Name of one of `tools`."""


class FunctionDefinition(ToolName):
    """A function the model may call."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1, max_length=256)
    """Name of the function."""
    description: str | None = None
    """Purpose of the function."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Same meaning as `strict` in a `response_format`; it applies where the function must be called."""


class CustomGrammar(Strict):
    """The grammar that the input of a custom tool has to follow."""

    syntax: Literal["lark", "regex"]
    """Notation of the grammar."""
    definition: str = Field(min_length=1)
    """The grammar, in Lark's notation, or the regular expression."""


class CustomFormat(Strict):
    """The form that the input of a custom tool has to have."""

    type: Literal["text", "grammar"]
    """`text`: any text; `grammar`: text that follows the grammar."""
    grammar: CustomGrammar | None = None
    """Grammar for the type `grammar`."""

    @model_validator(mode="after")
    def _grammar_matches_type(self) -> "CustomFormat":
        if (self.type == "grammar") != (self.grammar is not None):
            raise ValueError("'grammar', with 'syntax' and 'definition', belongs to the type 'grammar'")
        return self


class CustomDefinition(ToolName):
    """A tool whose input is a text, in place of JSON arguments."""

    name: str = Field(min_length=1, max_length=256)
    """Name of the tool."""
    description: str | None = None
    """Purpose of the tool."""
    format: CustomFormat | None = None
    """Form of the input; defaults to any text. If calls of this model cannot be constrained to it, the header
    `X-Mambaserve-Form-Left-Out` lists `format`."""

    @property
    def grammar(self) -> CustomGrammar | None:
        """Grammar of the input, if it has one."""
        return None if self.format is None else self.format.grammar

    def as_function(self) -> dict[str, Any]:
        """Return the function that represents the tool for models."""
        lines = [] if self.description is None else [self.description]
        if self.grammar is not None:
            notation = {"lark": "this grammar in Lark's notation", "regex": "this regular expression"}
            lines.append(f"The input follows {notation[self.grammar.syntax]}:\n{self.grammar.definition}")
        description = {"description": "\n".join(lines)} if lines else {}
        return {"name": self.name, **description, "parameters": input_schema()}


def input_schema() -> dict[str, Any]:
    """Return the schema of the arguments that carry the input of a custom tool."""
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


class OfType(Strict):
    """Base of objects whose `type` names the one field that must be set."""

    type: str

    @model_validator(mode="after")
    def _field_of_type_is_set(self) -> Self:
        types = get_args(type(self).model_fields["type"].annotation)
        values = {name: getattr(self, name) for name in types}
        if values[self.type] is None:
            message = f"{self.type}: {self.type!r} is missing, which the type '{self.type}' needs"
            raise PydanticCustomError("missing_part", message)
        if others := [name for name, value in values.items() if value is not None and name != self.type]:
            raise ValueError(f"{others[0]!r} does not belong to the type '{self.type}'; leave it out")
        return self


class NamedTool(OfType):
    """Names one of the request's `tools`."""

    type: Literal["function", "custom"]
    """Type of the tool."""
    function: ToolName | None = None
    """Name of the function, for the type `function`."""
    custom: ToolName | None = None
    """Name of the custom tool, for the type `custom`."""

    @property
    def name(self) -> str:
        """Name of the tool."""
        tool = self.function or self.custom
        assert tool is not None
        return tool.name


class Tool(NamedTool):
    """A tool offered to the model."""

    type: Literal["function", "custom"]
    """`function`: a tool that takes arguments; `custom`: one that takes a text."""
    function: FunctionDefinition | None = None
    """Definition for the type `function`."""
    custom: CustomDefinition | None = None
    """Definition for the type `custom`."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Schema of the arguments in the form that the model sees."""
        return input_schema() if self.function is None else self.function.parameters or {}

    @property
    def strict(self) -> bool:
        """Whether the arguments must follow every part of their schema."""
        return self.function is not None and bool(self.function.strict)

    def in_templates(self) -> dict[str, Any]:
        """Return the tool in the form of chat templates."""
        if self.custom is not None:
            return {"type": "function", "function": self.custom.as_function()}
        return self.model_dump(exclude_none=True)


class AllowedTools(Strict):
    """Restricts the model to some of its `tools`."""

    mode: Literal["auto", "required"]
    """`auto`: the model may call some of them; `required`: it must call at least one."""
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    """References to the tools."""


class ToolSelection(OfType):
    """The tools that the model must call, or may call."""

    type: Literal["function", "custom", "allowed_tools"]
    """`function`, `custom`: one call of the function or tool named below; `allowed_tools`: calls of these
    tools only."""
    function: ToolName | None = None
    """Name of the function, for the type `function`."""
    custom: ToolName | None = None
    """Name of the custom tool, for the type `custom`."""
    allowed_tools: AllowedTools | None = None
    """Tools for the type `allowed_tools`."""

    @property
    def named(self) -> list[tuple[str, str]]:
        """Type and name of each tool in the selection."""
        if self.allowed_tools is not None:
            return [(tool.type, tool.name) for tool in self.allowed_tools.tools]
        single = self.function or self.custom
        return [] if single is None else [(self.type, single.name)]
