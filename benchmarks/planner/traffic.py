"""Conversations, of which as many are answered at once as are waited with: what the planner plans for.

Twice the concurrency are under way, and who asks next is drawn by chance from those that think. A prompt is
all that was said before, and something new; after its last turn a conversation gives way to another, with the
same instructions before it or with others. The order is drawn beforehand, so that engines of other plans
are asked the same. Seeded; no clock.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from mamba_planner.constraints import Workload

VOCABULARY = 32_000
BETWEEN_TURNS = 2
"""Conversations for each request at once."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens, means of log-normal ones; `spread`: their sigma."""

    concurrency: int
    instructions: int
    """Said before the first turn, the same in each conversation that drew them; 0 = nothing."""
    sets: int
    """How many such instructions there are."""
    turns: float
    """Of a conversation, geometric."""
    asked: int
    answered: int
    spread: float


@dataclass(slots=True)
class Conversation:
    """One chat: what was `said` in it, and how long it will be once all that was drawn of it is over."""

    token_ids: list[int]
    turns_left: int
    """Turns that are not drawn."""
    length: int
    """Of all that will have been said after the last turn that was drawn."""
    known: int
    """Tokens of that which a request before the next one had."""
    free: bool = True
    """Nothing of it is being answered."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to come: its prompt is what `of` will have said by then, and `asked`."""

    conversation: Conversation
    question_tokens: int
    """Tokens of it."""
    outputs: int
    known: int
    """Prompt tokens that a request before it had."""
    prompt: int
    """Prompt tokens in all."""


@dataclass(slots=True)
class Traffic:
    """Asks turn after turn. `longest`: prompts and answers are cut to it together."""

    shape: Shape
    seed: int
    longest: int
    _rng: random.Random = field(init=False)
    _ids: np.random.Generator = field(init=False)
    _instructions: list[list[int]] = field(init=False)
    _used_instructions: set[int] = field(init=False)
    _thinking: list[Conversation] = field(init=False)
    _answering: deque[Conversation] = field(init=False)
    _drawn: deque[Turn] = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._ids = np.random.default_rng(self.seed)
        self._instructions = [self._text(self.shape.instructions) for _ in range(self.shape.sets)]
        self._used_instructions = set()
        self._thinking = [self._begin(aged=True) for _ in range(BETWEEN_TURNS * self.shape.concurrency)]
        self._answering = deque()
        self._drawn = deque()

    def draw(self) -> Turn:
        """The next turn in the order, as if all answers took the same time."""
        chosen = self._thinking.pop(self._rng.randrange(len(self._thinking)))
        asked, outputs = self._length(self.shape.asked), self._length(self.shape.answered)
        turn = Turn(chosen, asked, outputs, chosen.known, chosen.length + asked)
        chosen.length = chosen.known = turn.prompt + outputs
        chosen.turns_left -= 1
        over = chosen.turns_left <= 0 or chosen.length + self._most > self.longest
        self._answering.append(self._begin() if over else chosen)
        if len(self._answering) >= self.shape.concurrency:
            self._thinking.append(self._answering.popleft())
        return turn

    def next_turn(self) -> tuple[Turn, list[int]]:
        """The next turn of a conversation of which nothing is being answered, and its prompt."""
        turn = next((each for each in self._drawn if each.conversation.free), None)
        while turn is None:
            self._drawn.append(self.draw())
            turn = self._drawn[-1] if self._drawn[-1].conversation.free else None
        self._drawn.remove(turn)
        turn.conversation.free = False
        turn.conversation.token_ids += self._text(turn.question_tokens)
        return turn, list(turn.conversation.token_ids)

    @staticmethod
    def answered(turn: Turn, answer: list[int]) -> None:
        """The turn is over; the next of its conversation may come."""
        turn.conversation.token_ids += answer
        turn.conversation.free = True

    @property
    def _most(self) -> int:
        """Tokens of a question and an answer at most."""
        return 3 * (self.shape.asked + self.shape.answered)

    def _begin(self, *, aged: bool = False) -> Conversation:
        number = self._rng.randrange(self.shape.sets)
        said = list(self._instructions[number])
        known = len(said) if number in self._used_instructions else 0
        self._used_instructions.add(number)
        left = 1
        while self._rng.random() > 1 / self.shape.turns:
            left += 1
        if aged:
            # As if found in the middle; what was said before that is new to the engine.
            past = self._rng.randrange(left)
            left -= past
            for _ in range(past):
                if len(said) + 2 * self._most < self.longest:
                    said += self._text(self._length(self.shape.asked) + self._length(self.shape.answered))
        return Conversation(said, left, len(said), known)

    def _length(self, mean: int) -> int:
        sigma = self.shape.spread
        drawn = mean * self._rng.lognormvariate(-sigma * sigma / 2, sigma)
        return max(1, min(round(drawn), 3 * mean))

    def _text(self, length: int) -> list[int]:
        found: list[int] = self._ids.integers(1, VOCABULARY, length).tolist()
        return found


def declared(shape: Shape, seed: int, longest: int, requests: int = 400) -> Workload:
    """What a user who knows the traffic would declare: means of so many of its requests."""
    traffic = Traffic(shape, seed, longest)
    turns = [traffic.draw() for _ in range(2 * requests)][requests:]
    prompts = sum(turn.prompt for turn in turns)
    return Workload(
        max(1, prompts // requests), max(1, sum(turn.outputs for turn in turns) // requests),
        round(sum(turn.known for turn in turns) / prompts, 3), shape.concurrency, declared=True,
    )  # fmt: skip
