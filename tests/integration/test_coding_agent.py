"""A coding agent's tools by the unmodified clients: every call is valid, whole and streamed, turn by turn.

Two tools of the set are tried in two dialects, and with `make gates` every tool in all three.
"""

from collections.abc import Iterator

import pytest

from coding_agent import DIALECTS, PUBLISHED, Agent, ChatAgent
from matrix_size import LARGE
from servers import Server
from tiny_recall import longer_tiny_recall

pytestmark = pytest.mark.slow
PAGE = 16
NAMES = tuple(PUBLISHED) if LARGE else ("Read", "ExitPlanMode")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # The tools together take more tokens than the model's own context has.
    model = longer_tiny_recall(tmp_path_factory.mktemp("model"), 32_768)
    with Server(str(model), "--served-model-name", "tiny") as running:
        yield running.url


def call_each_tool(agent: Agent) -> None:
    seen: set[str] = set()
    before = 0
    for name in NAMES:
        turn, stream = agent.whole(name), agent.streamed(name)
        (call,), (same,) = turn.calls, stream.calls
        assert (same.name, same.arguments) == (call.name, call.arguments)
        assert call.name == name
        assert call.is_valid(agent.schema(name)), call
        assert call.id not in seen
        seen |= {call.id, same.id}
        assert turn.resumed_tokens >= before, name
        assert turn.prompt_tokens == stream.prompt_tokens
        # Whole pages before the last token are there for the next turn.
        before = (turn.prompt_tokens - 1) // PAGE * PAGE
        assert stream.resumed_tokens == before
        agent.answer(turn)
    assert len(seen) == 2 * len(NAMES)


@pytest.mark.timeout(1800 if LARGE else 120)
@pytest.mark.parametrize("dialect", sorted(DIALECTS) if LARGE else ["chat", "messages"])
def test_an_agent_calls_each_of_its_tools_and_goes_on_from_what_it_said(url: str, dialect: str) -> None:
    with DIALECTS[dialect](url, NAMES) as agent:
        call_each_tool(agent)


def test_several_calls_of_one_turn_have_their_own_results(url: str) -> None:
    with ChatAgent(url, NAMES) as agent:
        turn = agent.several(100)
        assert len(turn.calls) > 1
        assert len({call.id for call in turn.calls}) == len(turn.calls)
        assert all(call.is_valid(agent.schema(call.name)) for call in turn.calls)
        agent.answer(turn)
        following = agent.whole(None)
        assert following.resumed_tokens >= (turn.prompt_tokens - 1) // PAGE * PAGE
        assert following.prompt_tokens > turn.prompt_tokens
