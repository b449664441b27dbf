"""Tools of a chat request, and which of them the model may or has to call.

Used by `openai`, which has the request. A custom tool takes a text: models know functions alone, so it
reaches them as a function of one argument, and its calls come back as calls of a custom tool. Pure.
"""

from typing import Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mamba_api.openai_fields import MAX_TOOLS, Strict

INPUT = "input"
"""The argument of a custom tool, as models see it."""


class ToolName(Strict):
    """The name of a tool."""

    name: str = Field(min_length=1)
    """One of `tools`."""


class FunctionDefinition(ToolName):
    """A function the model may call."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1, max_length=256)
    """Its name."""
    description: str | None = None
    """What it does."""
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """As of a `response_format`, where the function has to be called."""


class CustomGrammar(Strict):
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    """How it is written."""
    definition: str = Field(min_length=1)
    """The grammar, in Lark's notation, or the regular expression."""


class CustomFormat(Strict):
    """The form of a custom tool's input."""

    type: Literal["text", "grammar"]
    """`text`: any; `grammar`: as the grammar says."""
    grammar: CustomGrammar | None = None
    """Of the type of that name."""

    @model_validator(mode="after")
    def _grammar_where_wanted(self) -> "CustomFormat":
        if (self.type == "grammar") != (self.grammar is not None):
            raise ValueError("'grammar', with 'syntax' and 'definition', belongs to the type 'grammar'")
        return self


class CustomDefinition(ToolName):
    """A tool that takes a text."""

    name: str = Field(min_length=1, max_length=256)
    """Its name."""
    description: str | None = None
    """What it does."""
    format: CustomFormat | None = None
    """The form of its input; none = any text. Where calls of this model cannot be made to follow it, the
    header `X-Mambaserve-Form-Left-Out` tells `format`."""

    @property
    def grammar(self) -> CustomGrammar | None:
        """The grammar of the input, if it has one."""
        return None if self.format is None else self.format.grammar

    def as_function(self) -> dict[str, Any]:
        """The function by which models know the tool."""
        lines = [] if self.description is None else [self.description]
        if self.grammar is not None:
            notation = {"lark": "this grammar in Lark's notation", "regex": "this regular expression"}
            lines.append(f"The input follows {notation[self.grammar.syntax]}:\n{self.grammar.definition}")
        about = {"description": "\n".join(lines)} if lines else {}
        return {"name": self.name, **about, "parameters": input_schema()}


def input_schema() -> dict[str, Any]:
    """The schema of the arguments by which models give the input of a custom tool."""
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


class OfType(Strict):
    """An object whose `type` names the one of its fields that is there."""

    type: str

    @model_validator(mode="after")
    def _as_its_type_says(self) -> Self:
        given = {each: getattr(self, each) for each in get_args(type(self).model_fields["type"].annotation)}
        if given[self.type] is None:
            said = f"{self.type}: {self.type!r} is missing, which the type '{self.type}' needs"
            raise PydanticCustomError("missing_part", said)
        if others := [name for name, value in given.items() if value is not None and name != self.type]:
            raise ValueError(f"{others[0]!r} does not belong to the type '{self.type}'; leave it out")
        return self


class NamedTool(OfType):
    """One of `tools`, by its name."""

    type: Literal["function", "custom"]
    """Its type."""
    function: ToolName | None = None
    """Of the type of that name."""
    custom: ToolName | None = None
    """Of the type of that name."""

    @property
    def name(self) -> str:
        """Its name."""
        known = self.function or self.custom
        assert known is not None
        return known.name


class Tool(NamedTool):
    """A tool offered to the model."""

    type: Literal["function", "custom"]
    """`function`: it takes arguments; `custom`: it takes a text."""
    function: FunctionDefinition | None = None
    """Of the type of that name."""
    custom: CustomDefinition | None = None
    """Of the type of that name."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of its arguments, as the model sees it."""
        return input_schema() if self.function is None else self.function.parameters or {}

    @property
    def strict(self) -> bool:
        """Whether all of what is said of its arguments has to be followed."""
        return self.function is not None and bool(self.function.strict)

    def in_templates(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        if self.custom is not None:
            return {"type": "function", "function": self.custom.as_function()}
        return self.model_dump(exclude_none=True)


class AllowedTools(Strict):
    """Some of `tools`, which alone the model may call."""

    mode: Literal["auto", "required"]
    """`auto`: it may call some of them; `required`: it has to."""
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    """The tools."""


class ToolSelection(OfType):
    """Which tools the model has to call, or may."""

    type: Literal["function", "custom", "allowed_tools"]
    """`function`, `custom`: one call of that tool; `allowed_tools`: calls of some of the tools alone."""
    function: ToolName | None = None
    """Of the type of that name."""
    custom: ToolName | None = None
    """Of the type of that name."""
    allowed_tools: AllowedTools | None = None
    """Of the type of that name."""

    @property
    def named(self) -> list[tuple[str, str]]:
        """Type and name of each tool that is named."""
        if self.allowed_tools is not None:
            return [(each.type, each.name) for each in self.allowed_tools.tools]
        known = self.function or self.custom
        return [] if known is None else [(self.type, known.name)]
