"""Prompt tokens before an engine: what it reported, what was sent since, nothing twice for long."""

from hypothesis import given
from hypothesis import strategies as st

from mamba_gateway.endpoints.endpoint import LAG, PromptQueue


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


def test_a_queue_that_is_empty_again_is_empty_whatever_was_added_and_taken_off() -> None:
    queue = PromptQueue()
    for ticket, tokens in enumerate((0.1, 0.2, 0.3, 1e9, 0.7)):
        queue.send(ticket, tokens, now=0.0)
    for ticket in (3, 0, 4, 1, 2):
        queue.answer(ticket)
    assert queue.tokens == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 5000)),
            st.tuples(st.just("answer"), st.integers(0, 30)),
            st.tuples(st.just("report"), st.none() | st.integers(0, 9000)),
            st.tuples(st.just("wait"), st.integers(1, 3)),
        )
    )
)
def test_what_counts_is_what_each_request_says_added_up(steps: list[tuple[str, int | None]]) -> None:
    queue, now = PromptQueue(), 0.0
    sent: dict[int, tuple[int, float, bool]] = {}
    reported, answered = 0, 0
    for number, (what, value) in enumerate(steps):
        if what == "send":
            queue.send(number, value or 0, now)
            sent[number] = (value or 0, now, False)
        elif what == "answer":
            queue.answer(value or 0)
            tokens, _, known = sent.pop(value or 0, (0, 0.0, False))
            answered += tokens if known else 0
        elif what == "report":
            queue.report(value, now)
            reported, answered = value or 0, 0
            sent = {t: (n, at, value is not None and at < now - LAG) for t, (n, at, _) in sent.items()}
        else:
            now += (value or 0) * LAG / 2
        ours = sum(tokens for tokens, _, known in sent.values() if not known)
        assert queue.tokens == ours + max(0, reported - answered)
