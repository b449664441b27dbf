"""A second model that drafts, as a user meets it: `mambaserve serve --speculation draft=URI` over HTTP."""

import urllib.request

import pytest

from servers import Command, Server, call

PROMPT = "The words are: apple, bridge, candle, dragon. Once more: apple, bridge,"


def completions(url: str) -> list[str]:
    """Return a greedy answer and two sampled ones, with a seed."""
    body = {"model": "tiny-recall", "prompt": PROMPT, "max_tokens": 24, "ignore_eos": True}
    greedy = call(f"{url}/v1/completions", {**body, "temperature": 0})[1]
    sampled = call(f"{url}/v1/completions", {**body, "temperature": 0.8, "seed": 3, "n": 2})[1]
    return [choice["text"] for answer in (greedy, sampled) for choice in answer["choices"]]


def counted(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and 'kind="model"' in line)


@pytest.mark.slow
def test_answers_with_a_draft_model_are_those_without_and_its_drafts_are_counted() -> None:
    draft = ("--speculation", "draft=builtin://tiny-recall", "--speculative-tokens", "3")
    with Server("builtin://tiny-recall", *draft) as server:
        answers = completions(server.url)
        accepted = counted(server, "mambaserve_accepted_draft_tokens_total")
        assert counted(server, "mambaserve_draft_tokens_total") >= accepted > 30
        plan = call(f"{server.admin}/admin/plan")[1]
        assert plan["draftModel"] == "builtin://tiny-recall"
        assert "draft model with its states and pages" in [line["item"] for line in plan["ledger"]]
        ledger = server.ledger()
        assert (ledger["draftLanes"], ledger["running"]) == (0, 0)

        switched = call(f"{server.admin}/admin/speculation", {"on": False}, method="PUT")
        assert switched == (200, {"on": False, "reason": "switched off by an admin call"})
        assert completions(server.url) == answers
        assert counted(server, "mambaserve_accepted_draft_tokens_total") == accepted


def test_a_draft_model_that_does_not_exist_is_named_before_anything_is_loaded() -> None:
    start = ("serve", "builtin://tiny-recall", "--port", "0", "--speculation", "draft=/no/model")
    with Command(*start) as process:
        process.wait_for("/no/model: the directory /no/model does not exist")
        assert process.process.wait(60) == 2
