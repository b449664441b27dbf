"""Messages of a step's output to the API process: none takes long to read."""

import pytest

from mamba_server.engine.engine_loop import MAX_LOGPROBS, output_messages
from mamba_server.wire import SequenceDelta, TokenLogprobs


def scores(tokens: int, alternatives: int) -> list[TokenLogprobs | None]:
    top = tuple(range(alternatives))
    return [None, *(TokenLogprobs(token, -1.0, top, (-1.0,) * alternatives) for token in range(1, tokens))]


@pytest.mark.parametrize("alternatives", [0, 1, 20])
@pytest.mark.parametrize("tokens", [1, 2, MAX_LOGPROBS // 21 + 1, 3 * MAX_LOGPROBS])
def test_scores_of_a_prompt_come_whole_and_in_order_before_its_first_token(
    tokens: int, alternatives: int
) -> None:
    given = scores(tokens, alternatives)
    first = SequenceDelta("a", 0, [7], prompt_logprobs=given, cached_tokens=3)
    other = SequenceDelta("b", 0, [8])
    sent = [delta for message in output_messages([other, first]) for delta in message.deltas]
    mine = [delta for delta in sent if delta.request_id == "a"]
    assert [each for delta in mine for each in delta.prompt_logprobs or ()] == given
    assert [delta.token_ids for delta in mine] == [[]] * (len(mine) - 1) + [[7]]
    assert mine[-1].cached_tokens == 3
    assert [delta for delta in sent if delta.request_id == "b"] == [other]
    for message in output_messages([other, first]):
        entries = [each for delta in message.deltas for each in delta.prompt_logprobs or ()]
        assert len(entries) * (1 + alternatives) <= MAX_LOGPROBS


def test_a_step_without_news_sends_nothing() -> None:
    assert list(output_messages([])) == []
