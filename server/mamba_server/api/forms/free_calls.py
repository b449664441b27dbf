"""The grammar of an answer in which the model may call custom tools whose input has a format. Pure.

`output_grammar` uses it. The answer is unrestricted until a call of such a tool begins; from there to its end
the call is restricted like a forced one.
"""

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from mamba_api.openai_tools import INPUT, Tool
from mamba_server.api.forms.followed_schema import FormLimits
from mamba_server.api.forms.forced_calls import escape, grammars_of, of_input, parameters_of, token_or_text
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCallFormat


def can_be_followed(tool: Tool, form: ToolCallFormat) -> bool:
    """Return whether the format of the tool's input can be enforced in calls that are not forced.

    It cannot be enforced in lists of calls, nor if a grammar in Lark's notation would have to produce a JSON
    string.
    """
    grammar = None if tool.custom is None else tool.custom.grammar
    return grammar is not None and (form.tagged or (not form.listed and grammar.syntax == "regex"))


def free_calls(tools: Sequence[Tool], form: ToolCallFormat, tokenizer: Tokenizer, limits: FormLimits) -> str:
    """Build llguidance's grammar of an unrestricted answer whose calls of these tools follow their formats.

    Raises ValueError if a format cannot be followed.
    """
    begin, end = (token_or_text(marker, tokenizer) for marker in (form.begin, form.end))
    spelled = "" if form.tagged else f"{escape(form.begin)}\\s*"
    heads = [_tagged_head(tool) if form.tagged else _json_head(tool) for tool in tools]
    any_head = spelled + f"({'|'.join(heads)})"
    rules = [f"TEXT: /(?s:.+)/ & ~/(?s:.*){any_head}(?s:.*)/"]
    inputs: list[dict[str, Any]] = []
    for number, (tool, head) in enumerate(zip(tools, heads, strict=True)):
        rules += _head_rules(number, head, [other for other in heads if other != head], spelled)
        if form.tagged:
            rules.append(_tagged_rest(number))
            inputs += _input_grammars(number, tool)
        else:
            rules += _json_rest(number, tool, limits, end)
    numbers = range(len(tools))
    rules.append("part: (" + " | ".join(f"spelled_{n} rest_{n}" for n in numbers) + ")* TEXT?")
    specials = [marker for marker in (begin, end) if marker.startswith("<")]
    if form.tagged and specials:
        rules.append(f"start: part (({' | '.join(specials)}) part)*")
    elif begin.startswith("<"):
        rules += [
            f"OTHER: /(?s:.+)/ & ~/\\s*({'|'.join(heads)})(?s:.*)/ & ~/(?s:.*){any_head}(?s:.*)/",
            "called: " + " | ".join(f"head_{n} rest_{n} part" for n in numbers) + " | OTHER?",
            f"start: part ({begin} called{f' | {end} part' if end.startswith('<') else ''})*",
        ]
    else:
        rules.append("start: part")
    answer = str(LLMatcher.grammar_from_lark("\n".join(rules)))
    return json.dumps({"grammars": grammars_of(answer) + inputs}) if inputs else answer


def _head_rules(number: int, head: str, other_heads: Sequence[str], spelled: str) -> list[str]:
    """Return the grammar rules of text that ends with the beginning of a call of this tool.

    `head` is the beginning of its call. The text contains none of `other_heads`, the beginnings of calls of
    the other tools.
    """
    without = f" & ~/(?s:.*){spelled}({'|'.join(other_heads)})(?s:.*)/" if other_heads else ""
    return [
        f"SPELLED_{number}: /(?s:.*){spelled}{head}/{without}",
        f"spelled_{number}[lazy]: SPELLED_{number}",
        f"head_{number}: /\\s*{head}/",
    ]


def _tagged_rest(number: int) -> str:
    first, last = json.dumps(f"<parameter={INPUT}>\n"), json.dumps("\n</parameter>\n</function>")
    return f'rest_{number}: "\\n"? {first} @input_{number} {last}'


def _input_grammars(number: int, tool: Tool) -> list[dict[str, Any]]:
    """Return the grammars of a custom tool's input; the first one is named by the tool's number."""
    assert tool.custom is not None
    assert tool.custom.grammar is not None
    first, *others = grammars_of(of_input(tool.custom.grammar))
    return [{**first, "name": f"input_{number}"}, *others]


def _json_rest(number: int, tool: Tool, limits: FormLimits, end: str) -> list[str]:
    schema = {"type": "object", **parameters_of(tool, limits), "x-guidance": limits.style}
    return [
        f'rest_{number}: /\\s*,\\s*"arguments"\\s*:\\s*/ arguments_{number} /\\s*}}\\s*/ {end}',
        f"arguments_{number}: %json {json.dumps(schema)}",
    ]


def _json_head(tool: Tool) -> str:
    """Return an expression for the beginning of a call, up to the tool's name."""
    names = dict.fromkeys((json.dumps(tool.name), json.dumps(tool.name, ensure_ascii=False)))
    return f'\\{{\\s*"name"\\s*:\\s*({"|".join(map(escape, names))})'


def _tagged_head(tool: Tool) -> str:
    return escape(f"<function={tool.name}>").replace("\\\n", "\\n")
