"""Grammars are made where nobody else's request is: whatever they do there is a failure of theirs alone."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from byte_tokenizer import byte_tokenizer, write_tokenizer
from mamba_api.openai import CompletionRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.forms.grammar_checker import MAX_WAITING, GrammarChecker, GrammarTokens
from mamba_server.api.forms.output_grammar import output_grammar
from mamba_server.api.requests.errors import TooManyForms
from mamba_text.generation_defaults import GenerationDefaults
from mamba_text.prompt import TextProcessor
from mamba_text.tokenizer import Tokenizer
from matrix_size import LARGE

HOSTILE = 200 if LARGE else 64
SLOW = "(?s:.*)" * 3000


def reference_chain(rng: random.Random) -> dict[str, Any]:
    """Return a schema whose definitions lead to each other, in one of the ways that schemas have."""
    depth = rng.choice([10, 100, 300, 870, 1100])
    form = rng.choice(["properties", "anyOf", "allOf", "items"])

    def step(target: str) -> dict[str, Any]:
        link = {"$ref": f"#/$defs/{target}"}
        return {form: {"x": link} if form == "properties" else link if form == "items" else [link]}

    definitions = {str(i): step(str(i + 1)) for i in range(depth)} | {str(depth): {"type": "integer"}}
    return {"$ref": "#/$defs/0", "$defs": definitions}


def nested(rng: random.Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(rng.choice([5, 50, 120])):
        schema = (
            {"type": "array", "items": schema}
            if rng.random() < 0.5
            else {"anyOf": [schema, {"type": "null"}]}
        )
    return schema


def wide(rng: random.Random) -> dict[str, Any]:
    count = rng.choice([10, 400, 700, 1500])
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}}


def huge(rng: random.Random) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string", "maxLength": 10 ** rng.randrange(2, 10)},
            "maxItems": 10 ** rng.randrange(2, 10)}  # fmt: skip


def chain_of_rules(rng: random.Random) -> str:
    count, kind = rng.choice([10, 700, 2700, 4000]), rng.choice("rR")
    chain = "".join(f"{kind}{i}: {kind}{i + 1}\n" for i in range(count))
    return f'start: {kind}0\n{chain}{kind}{count}: "a"'


def brackets(rng: random.Random) -> str:
    depth, (begin, end) = (
        rng.choice([10, 500, 5000, 15000]),
        rng.choice([("a{", "}"), ("(", ")"), ("[", "]")]),
    )
    return "start: " + begin * depth + "b" + end * depth


def recursive_rules(rng: random.Random) -> str:
    names = [f"r{i}" for i in range(rng.choice([3, 30, 200]))]
    bodies = (
        " | ".join(" ".join(rng.choices([*names, '"a"', '"ab"'], k=3)) for _ in range(3)) for _ in names
    )
    return "start: r0\n" + "\n".join(
        f'{name}: {body} | "x"' for name, body in zip(names, bodies, strict=True)
    )


def expression(rng: random.Random) -> str:
    return rng.choice([
        "(?s:.*)" * rng.choice([10, 300, 800]),
        "(" * rng.choice([10, 1000]) + "a" + ")+" * rng.choice([10, 1000]),
        "((a{1,1000}){1,1000}){1,1000}",
        "|".join("a" * i + ".*" for i in range(rng.choice([5, 150]))),
        "(a|b)*a(a|b){" + str(rng.choice([5, 20, 200])) + "}",
        "[" + "\\u{1F600}-\\u{1F64F}" * 500 + "]+",
        "~(" * 50 + "a" + ")" * 50,
    ])  # fmt: skip


MAKERS: tuple[tuple[str, Callable[[random.Random], Any]], ...] = (
    ("json", reference_chain),
    ("json", nested),
    ("json", wide),
    ("json", huge),
    ("grammar", chain_of_rules),
    ("grammar", brackets),
    ("grammar", recursive_rules),
    ("regex", expression),
)


@pytest.fixture
def tokens(tmp_path: Path) -> GrammarTokens:
    eos = write_tokenizer(tmp_path).token_to_id("<eos>")
    return GrammarTokens(tmp_path / "tokenizer.json", 300, (eos,))


@pytest.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    made = GrammarChecker()
    yield made
    await made.close()


@pytest.mark.slow
async def test_hundreds_of_hostile_forms_are_refused_or_followed_and_end_nothing(
    checker: GrammarChecker, tokens: GrammarTokens
) -> None:
    rng, text = random.Random(20), TextProcessor(Tokenizer(byte_tokenizer(), {}), None, GenerationDefaults())
    assert await checker.check('start: "a"', tokens) == ""
    assert checker._process is not None
    process = checker._process.pid
    memory = resident(process)
    ends: Counter[str | None] = Counter()
    for number in range(HOSTILE):
        field, make = MAKERS[number % len(MAKERS)]
        form = {field: make(rng)}
        body = CompletionRequest.model_validate({"prompt": "x", "structured_outputs": form})
        try:
            await output_grammar(body, text, lambda grammar: checker.check(grammar, tokens))
            ends["followed"] += 1
        except InvalidRequest as error:
            ends["limits." if "limits." in error.message else error.code] += 1
    assert set(ends) == {"followed", "invalid_output_grammar"}
    assert min(ends.values()) > HOSTILE / 10
    assert checker._process is not None
    assert checker._process.pid == process
    assert resident(process) - memory < 8 << 20
    assert await checker.check('start: "b"', tokens) == ""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_what_ends_the_process_that_makes_a_grammar_is_a_failure_of_that_grammar(
    checker: GrammarChecker, tokens: GrammarTokens
) -> None:
    chain = "".join(f"r{i}: r{i + 1}\n" for i in range(20_000))
    deep, good = await asyncio.gather(
        checker.check(f'start: r0\n{chain}r20000: "a"', tokens, "one"),
        checker.check('start: "a"', tokens, "two"),
    )
    assert deep
    assert good == ""


@pytest.mark.slow
async def test_a_short_form_does_not_wait_for_long_ones_nor_a_client_for_another(
    checker: GrammarChecker, tokens: GrammarTokens
) -> None:
    ended: list[str] = []

    async def ask(name: str, grammar: str, client: str) -> None:
        await checker.check(grammar, tokens, client)
        ended.append(name)

    slow = [LLMatcher.grammar_from_regex(SLOW + "x" * i) for i in range(3)]
    asked = [asyncio.create_task(ask("slow", each, "one")) for each in slow]
    await asyncio.sleep(0)
    asked.append(asyncio.create_task(ask("long", "start: " + '"a" ' * 1000, "two")))
    asked.append(asyncio.create_task(ask("short", 'start: "yes" | "no"', "one")))
    await asyncio.gather(*asked)
    assert ended == ["short", "slow", "long", "slow", "slow"]


async def test_a_form_is_made_once_however_often_it_comes(
    checker: GrammarChecker, tokens: GrammarTokens
) -> None:
    slow = LLMatcher.grammar_from_regex(SLOW)
    first = await asyncio.gather(*(checker.check(slow, tokens) for _ in range(40)))
    again = await checker.check(slow, tokens)
    assert set(first) == {again}
    assert checker._numbers == 1


@pytest.mark.parametrize("same", [True, False], ids=["one form", "forms of their own"])
async def test_more_requests_of_one_client_than_may_wait_are_sent_away_and_those_of_others_are_not(
    same: bool, checker: GrammarChecker, tokens: GrammarTokens
) -> None:
    slow = LLMatcher.grammar_from_regex(SLOW)
    forms = [slow if same else f'start: "{i}"' for i in range(MAX_WAITING)]
    asked = [asyncio.create_task(checker.check(each, tokens, "one")) for each in forms]
    await asyncio.sleep(0)
    for number, client in enumerate(("two", "three", "four")):
        other = slow + "x" * number if same else f'start: "other {client}"'
        asked.append(asyncio.create_task(checker.check(other, tokens, client)))
    done = await asyncio.gather(*asked, return_exceptions=True)
    refused = [isinstance(each, TooManyForms) for each in done]
    assert refused == [False] * (MAX_WAITING // 2) + [True] * (MAX_WAITING // 2) + [False] * 3


async def test_a_process_that_was_killed_is_started_again(
    checker: GrammarChecker, tokens: GrammarTokens
) -> None:
    assert await checker.check('start: "a"', tokens) == ""
    assert checker._process is not None
    checker._process.kill()
    assert await checker.check('start: "b"', tokens) == ""
