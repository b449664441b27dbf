"""`Answer` and `Score`: what the model wrote, and how likely it finds a text."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to a prompt."""

    text: str
    finish_reason: str
    """Reason of its end: stop, length or tool_calls."""
    logprobs: dict[str, Any] | None = None
    """Log-probabilities in the form of the API, where they were requested."""
    message: dict[str, Any] = field(default_factory=dict)
    """Whole message of a chat, with reasoning and tool calls; empty for a completion."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answers to one prompt."""

    choices: tuple[Choice, ...]
    """`n` answers; one by default."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were resumed from a cached state instead of being computed."""
    generated_tokens: int

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probability of each token of a text, given the tokens before it."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    """Natural logarithms, one for each token but the first, which has nothing before it."""
    ranks: tuple[int, ...] = ()
    """Rank of each of these tokens among all tokens: 1 is what a greedy answer would continue with."""

    @property
    def total(self) -> float:
        """Natural logarithm of the probability of the text after its first token."""
        return sum(self.logprobs)


def answer_of(body: dict[str, Any]) -> Answer:
    """Return the answer in the body of a chat or of a completion."""
    usage = body["usage"]
    return Answer(
        choices=tuple(map(_choice, sorted(body["choices"], key=lambda choice: choice["index"]))),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        generated_tokens=usage["completion_tokens"],
    )


def score_of(body: dict[str, Any]) -> Score:
    """Return the score in the body of a completion that echoes its prompt with log-probabilities."""
    [choice] = body["choices"]
    ranks = tuple(rank for entry in choice["prompt_logprobs"][1:] for rank in map(_rank, entry.values()))
    logprobs = choice["logprobs"]
    return Score(tuple(logprobs["tokens"]), tuple(logprobs["token_logprobs"][1:]), ranks)


def _rank(entry: dict[str, Any]) -> int:
    return int(entry["rank"])


def _choice(choice: dict[str, Any]) -> Choice:
    message = choice.get("message") or {}
    text = choice.get("text") or message.get("content") or ""
    return Choice(text, str(choice.get("finish_reason") or ""), choice.get("logprobs"), message)
