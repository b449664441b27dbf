"""Prompt tokens before an engine: what it reported, what was sent since, nothing twice for long."""

from mamba_gateway.prompt_queue import LAG, PromptQueue


def test_what_is_sent_counts_at_once_and_until_it_is_answered() -> None:
    queue = PromptQueue()
    queue.send(1, 300, now=10.0)
    queue.send(2, 50, now=10.0)
    assert queue.tokens == 350
    queue.answer(1)
    queue.answer(1)
    assert queue.tokens == 50


def test_a_report_replaces_what_was_sent_well_before_it() -> None:
    queue = PromptQueue()
    queue.send(1, 10_000, now=10.0)
    queue.report(4000, now=10.0 + LAG + 0.5)
    assert queue.tokens == 4000


def test_what_was_sent_just_before_a_report_counts_beside_it() -> None:
    queue = PromptQueue()
    queue.send(1, 300, now=10.0)
    queue.report(0, now=10.0 + LAG / 2)
    assert queue.tokens == 300
    queue.answer(1)
    assert queue.tokens == 0


def test_what_was_answered_since_a_report_is_taken_off_it_and_it_is_never_less_than_nothing() -> None:
    queue = PromptQueue()
    queue.send(1, 3000, now=0.0)
    queue.send(2, 3000, now=0.0)
    queue.report(4000, now=5.0)
    queue.answer(1)
    assert queue.tokens == 1000
    queue.answer(2)
    assert queue.tokens == 0
    queue.send(3, 500, now=5.1)
    assert queue.tokens == 500
    queue.report(700, now=9.0)
    assert queue.tokens == 700


def test_of_an_engine_that_says_nothing_only_our_own_are_known() -> None:
    queue = PromptQueue()
    queue.send(1, 300, now=0.0)
    queue.report(None, now=50.0)
    assert queue.tokens == 300
