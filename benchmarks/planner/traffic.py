"""`Traffic`: multi-turn conversations at a fixed concurrency, the workload that the planner plans for.

Twice as many conversations are open as requests run at once; the next turn is drawn at random from those that
are idle. A prompt is the conversation so far plus a new question. After its last turn a conversation is
replaced by another, with the same instructions or others. The order of turns is drawn in advance, so that
engines with different plans get the same requests. Seeded; no clock.
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
    """Number of different instructions."""
    turns: float
    """Mean turns of a conversation, distributed geometrically."""
    asked: int
    answered: int
    spread: float


@dataclass(slots=True)
class Conversation:
    """One conversation: its tokens so far, and its length after all turns drawn so far."""

    token_ids: list[int]
    turns_left: int
    """Turns that are not drawn."""
    length: int
    """Tokens after the last turn that was drawn."""
    known: int
    """Tokens of it that an earlier request had."""
    free: bool = True
    """No turn of it is running."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its prompt is the conversation so far and a new question."""

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
    """Gives turn after turn. `longest`: most tokens of prompt and answer together."""

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
        """Draw the next turn, as if all answers took equally long."""
        chosen = self._thinking.pop(self._rng.randrange(len(self._thinking)))
        question, outputs = self._length(self.shape.asked), self._length(self.shape.answered)
        turn = Turn(chosen, question, outputs, chosen.known, chosen.length + question)
        chosen.length = chosen.known = turn.prompt + outputs
        chosen.turns_left -= 1
        over = chosen.turns_left <= 0 or chosen.length + self._most > self.longest
        self._answering.append(self._begin() if over else chosen)
        if len(self._answering) >= self.shape.concurrency:
            self._thinking.append(self._answering.popleft())
        return turn

    def next_turn(self) -> tuple[Turn, list[int]]:
        """Return the next turn whose conversation is free, and its prompt as token ids."""
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
        """End the turn, so that the next one of its conversation may come."""
        turn.conversation.token_ids += answer
        turn.conversation.free = True

    @property
    def _most(self) -> int:
        """Tokens of a question and an answer at most."""
        return 3 * (self.shape.asked + self.shape.answered)

    def _begin(self, *, aged: bool = False) -> Conversation:
        number = self._rng.randrange(self.shape.sets)
        text = list(self._instructions[number])
        shared_length = len(text) if number in self._used_instructions else 0
        self._used_instructions.add(number)
        left = 1
        while self._rng.random() > 1 / self.shape.turns:
            left += 1
        if aged:
            # As if found in the middle; what was said before that is new to the engine.
            past = self._rng.randrange(left)
            left -= past
            for _ in range(past):
                if len(text) + 2 * self._most < self.longest:
                    text += self._text(self._length(self.shape.asked) + self._length(self.shape.answered))
        return Conversation(text, left, len(text), shared_length)

    def _length(self, mean: int) -> int:
        sigma = self.shape.spread
        drawn = mean * self._rng.lognormvariate(-sigma * sigma / 2, sigma)
        return max(1, min(round(drawn), 3 * mean))

    def _text(self, length: int) -> list[int]:
        token_ids: list[int] = self._ids.integers(1, VOCABULARY, length).tolist()
        return token_ids


def declared(shape: Shape, seed: int, longest: int, requests: int = 400) -> Workload:
    """Return the workload that a user would declare for this traffic: means of `requests` requests."""
    traffic = Traffic(shape, seed, longest)
    turns = [traffic.draw() for _ in range(2 * requests)][requests:]
    prompts = sum(turn.prompt for turn in turns)
    return Workload(
        max(1, prompts // requests), max(1, sum(turn.outputs for turn in turns) // requests),
        round(sum(turn.known for turn in turns) / prompts, 3), shape.concurrency, declared=True,
    )  # fmt: skip
