"""The grammar of an answer in which the model may call custom tools whose input has a format. Pure.

Used by `output_grammar`. The answer is free up to where a call of such a tool begins; from there to the
end of the call it is as if the call were forced.
"""

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from mamba_api.openai_tools import INPUT, Tool
from mamba_server.api.forms.followed_schema import FormLimits
from mamba_server.api.forms.forced_calls import escaped, grammars_of, of_input, parameters_of, token_or_text
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCallFormat


def can_be_followed(tool: Tool, form: ToolCallFormat) -> bool:
    """Whether the format of the tool's input acts in calls that the model makes by itself: not in lists of
    calls, nor where a grammar in Lark's notation would have to write a string of JSON."""
    grammar = None if tool.custom is None else tool.custom.grammar
    return grammar is not None and (form.tagged or (not form.listed and grammar.syntax == "regex"))


def free_calls(tools: Sequence[Tool], form: ToolCallFormat, tokenizer: Tokenizer, limits: FormLimits) -> str:
    """Make llguidance's grammar of an answer that may be anything, in which calls of these tools have inputs
    of their formats. Raises ValueError where a format cannot be followed."""
    begin, end = (token_or_text(marker, tokenizer) for marker in (form.begin, form.end))
    spelled = "" if form.tagged else f"{escaped(form.begin)}\\s*"
    heads = [_tagged_head(tool) if form.tagged else _json_head(tool) for tool in tools]
    any_head = spelled + f"({'|'.join(heads)})"
    rules = [f"TEXT: /(?s:.+)/ & ~/(?s:.*){any_head}(?s:.*)/"]
    inputs: list[dict[str, Any]] = []
    for number, (tool, head) in enumerate(zip(tools, heads, strict=True)):
        others = [each for each in heads if each != head]
        without = f" & ~/(?s:.*){spelled}({'|'.join(others)})(?s:.*)/" if others else ""
        rules += [
            f"SPELLED_{number}: /(?s:.*){spelled}{head}/{without}",
            f"spelled_{number}[lazy]: SPELLED_{number}",
            f"head_{number}: /\\s*{head}/",
        ]
        if form.tagged:
            first, last = json.dumps(f"<parameter={INPUT}>\n"), json.dumps("\n</parameter>\n</function>")
            rules.append(f'rest_{number}: "\\n"? {first} @input_{number} {last}')
            assert tool.custom is not None
            assert tool.custom.grammar is not None
            made, *more = grammars_of(of_input(tool.custom.grammar))
            inputs += [{**made, "name": f"input_{number}"}, *more]
        else:
            schema = {"type": "object", **parameters_of(tool, limits), "x-guidance": limits.style}
            rules += [
                f'rest_{number}: /\\s*,\\s*"arguments"\\s*:\\s*/ arguments_{number} /\\s*}}\\s*/ {end}',
                f"arguments_{number}: %json {json.dumps(schema)}",
            ]
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


def _json_head(tool: Tool) -> str:
    """The beginning of a call up to the tool's name, as an expression."""
    names = dict.fromkeys((json.dumps(tool.name), json.dumps(tool.name, ensure_ascii=False)))
    return f'\\{{\\s*"name"\\s*:\\s*({"|".join(map(escaped, names))})'


def _tagged_head(tool: Tool) -> str:
    return escaped(f"<function={tool.name}>").replace("\\\n", "\\n")
