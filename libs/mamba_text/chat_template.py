"""Turns messages into the prompt of a chat model, by the model's own Jinja template in an immutable sandbox.

Templates come from the model directory and never from a request. An error that a template raises for a
conversation is an error of that request.
"""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mamba_text.errors import BadTemplate, TemplateRefused
from mamba_text.reasoning import reasoning_format_of
from mamba_text.tokenizer import Tokenizer, read_json
from mamba_text.tool_calls import format_of

_END_OF_MESSAGE = "\ue000end-of-the-continued-message\ue001"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})

# Exceptions that a template's own code can raise for unexpected values.
_FAILURES = (
    jinja2.TemplateError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError,
)  # fmt: skip


class _TemplateException(jinja2.TemplateError):
    """An error that the template raised through `raise_exception`."""


def _raise(message: str) -> None:
    raise _TemplateException(str(message))


_ATTRIBUTES_OF_DICTS = frozenset(dir(dict))


class _Sandbox(ImmutableSandboxedEnvironment):
    """The immutable sandbox, which finds a field of a message (`message.role`) by its key at once.

    The base class first asks for an attribute, and the exception of that takes most of the time of a long
    conversation's template.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return a field or attribute, the same one as the base class."""
        if type(obj) is not dict or attribute in _ATTRIBUTES_OF_DICTS:
            return super().getattr(obj, attribute)
        try:
            return obj[attribute]
        except LookupError:
            return self.undefined(obj=obj, name=attribute)


class _Generation(Extension):
    """The block `{% generation %}`, which marks text for training: its content is shown unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements up to `{% endgeneration %}`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter would escape for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """The chat template of a model. The constructor raises BadTemplate if it does not compile.

    `with_tools` is another template for conversations with tools, if the model has one. `now` returns the
    time that the template's function `strftime_now` shows.
    """

    def __init__(
        self,
        source: str,
        special_tokens: dict[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
        with_tools: "ChatTemplate | None" = None,
    ) -> None:
        self.with_tools = with_tools
        """The model's own template for conversations with tools; None = this one."""
        environment = _Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            undefined=jinja2.Undefined,
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            """Names of the variables that the template uses."""
        except jinja2.TemplateError as error:
            raise BadTemplate(f"the chat template does not compile: {error}") from error
        self._special_tokens = special_tokens
        self.tool_calls = format_of(source)
        """Format in which the model writes calls; None = no known format."""
        self.reasoning = reasoning_format_of(source)
        """Markers of the model's reasoning; None = the template has none."""

    def of(self, *, tools: bool) -> "ChatTemplate":
        """Return the template for conversations with `tools`, or for conversations without."""
        return self.with_tools if tools and self.with_tools is not None else self

    @property
    def takes_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return "tools" in self.variables

    @classmethod
    def load(cls, directory: Path, tokenizer: Tokenizer) -> "ChatTemplate | None":
        """Load the template of a model directory; None = the directory has none.

        The template is in chat_template.jinja, chat_template.json or tokenizer_config.json.
        """
        path = directory / "chat_template.jinja"
        source: Any = None
        if path.is_file():
            try:
                source = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BadTemplate(f"{path}: not readable as text: {error}") from error
        else:
            path = directory / "chat_template.json"
            source = read_json(path).get("chat_template")
            if source is None:
                path = directory / "tokenizer_config.json"
                source = tokenizer.config.get("chat_template")
        tool_use: Any = None
        # Several templates by name: the default one, and one for tools.
        if isinstance(source, list) and all(isinstance(item, dict) for item in source):
            named = {item.get("name"): item.get("template") for item in source}
            tool_use = named.get("tool_use")
            source = named.get("default", tool_use)
        if (tool_path := directory / TOOL_TEMPLATE).is_file():
            try:
                tool_use = tool_path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BadTemplate(f"{tool_path}: not readable as text: {error}") from error
            source = tool_use if source is None else source
        if source is None:
            return None
        if not isinstance(source, str):
            raise BadTemplate(f"{path}: chat_template must be a string or a list of named templates")
        try:
            special = tokenizer.special_tokens
            with_tools = cls(tool_use, special) if isinstance(tool_use, str) else None
            return cls(source, special, with_tools=with_tools)
        except BadTemplate as error:
            raise BadTemplate(f"{path}: {error}") from error

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        generation_prompt: bool = True,
        variables: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Return the prompt as text. Raises TemplateRefused with the template's own message."""
        extra = {key: value for key, value in (variables or {}).items() if key not in _RESERVED}
        try:
            return self._template.render(
                **self._special_tokens,
                **{key: value for key, value in extra.items() if key not in self._special_tokens},
                messages=messages,
                tools=tools,
                add_generation_prompt=generation_prompt,
            )
        except _TemplateException as error:
            raise TemplateRefused(f"the chat template refused these messages: {error}") from error
        except _FAILURES as error:
            raise TemplateRefused(f"the chat template failed for these messages: {error}") from error

    def text(
        self,
        messages: list[dict[str, Any]],
        *,
        variables: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
        generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> str:
        """Return the whole text to encode.

        With `continue_final`, the text ends where the last message ends, so that the model continues the
        message. Otherwise the parameters are those of `render`. Raises TemplateRefused.
        """
        if not continue_final:
            return self.render(
                messages, variables=variables, tools=tools, generation_prompt=generation_prompt
            )
        # A unique text marks the message's end; the blank behind it shows whether the template strips.
        content = messages[-1]["content"]
        marked = [*messages[:-1], {**messages[-1], "content": f"{content}{_END_OF_MESSAGE} "}]
        text = self.render(marked, variables=variables, tools=tools, generation_prompt=False)
        head, marker, tail = text.rpartition(_END_OF_MESSAGE)
        if not marker:
            raise TemplateRefused(
                "the chat template does not show the last message, so it cannot be continued"
            )
        return head if tail.startswith(" ") else head.rstrip()
