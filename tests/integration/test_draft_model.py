"""A second model that drafts, as a user meets it: `mambaserve serve --speculation draft=URI` over HTTP."""

import pytest

from servers import Command, Server, call

PROMPT = "The words are: apple, bridge, candle, dragon. Once more: apple, bridge,"


def completions(url: str) -> list[str]:
    """Return a greedy answer and two sampled ones, with a seed."""
    body = {"model": "tiny-recall", "prompt": PROMPT, "max_tokens": 24, "ignore_eos": True}
    greedy = call(f"{url}/v1/completions", {**body, "temperature": 0})[1]
    sampled = call(f"{url}/v1/completions", {**body, "temperature": 0.8, "seed": 3, "n": 2})[1]
    return [choice["text"] for answer in (greedy, sampled) for choice in answer["choices"]]


def counted(server: Server, tokens: str, sequences: int) -> float:
    return server.counted(f"mambaserve_{tokens}_tokens_total", sequences=sequences, labels='kind="model"')


@pytest.mark.slow
def test_answers_with_a_draft_model_are_those_without_and_its_drafts_are_counted() -> None:
    draft = ("--speculation", "draft=builtin://tiny-recall", "--speculative-tokens", "3")
    with Server("builtin://tiny-recall", *draft) as server:
        answers = completions(server.url)
        drafted = counted(server, "draft", 3)
        assert drafted >= counted(server, "accepted_draft", 3) > 30
        plan = call(f"{server.admin}/admin/plan")[1]
        assert plan["draftModel"] == "builtin://tiny-recall"
        assert "draft model with its states and pages" in [line["item"] for line in plan["ledger"]]
        ledger = server.ledger()
        assert (ledger["draftLanes"], ledger["running"]) == (0, 0)

        switched = call(f"{server.admin}/admin/speculation", {"on": False}, method="PUT")
        assert switched == (200, {"on": False, "reason": "switched off by an admin call"})
        assert completions(server.url) == answers
        assert counted(server, "draft", 6) == drafted


def test_a_draft_model_that_does_not_exist_is_named_before_anything_is_loaded() -> None:
    start = ("serve", "builtin://tiny-recall", "--port", "0", "--speculation", "draft=/no/model")
    with Command(*start) as process:
        process.wait_for("/no/model: the directory /no/model does not exist")
        assert process.process.wait(60) == 2
