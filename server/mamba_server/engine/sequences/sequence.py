"""One sequence in the engine: its tokens, what it may still generate, and where it stands."""

from enum import Enum
from typing import Optional

import numpy as np

from mamba_server.cache import SequenceAllocation, Tokens
from mamba_server.engine.sequences.output_grammar import OutputGrammar
from mamba_server.engine.sequences.timeline import Timeline
from mamba_server.wire import FinishReason, SamplingParams, TokenLogprobs


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Sequence:
    """Prompt and output of one sequence.

    `known` tokens are on the host. Under overlap a launched step may have sampled one more: of a decoding
    sequence at depth d there are d + 1 tokens, and `known <= d + 1 <= known + 1` between steps. Its depth
    is told by its allocation.
    """

    __slots__ = (
        "allocation",
        "arrival",
        "cached_tokens",
        "client",
        "deferred",
        "finish_reason",
        "grammar",
        "in_flight",
        "index",
        "known",
        "leader",
        "miss_cause",
        "order",
        "params",
        "phase",
        "preemptions",
        "priority",
        "prompt_done",
        "prompt_len",
        "prompt_logprobs",
        "recomputed_tokens",
        "reported",
        "request_id",
        "salt",
        "seed",
        "started",
        "stop_token_ids",
        "target",
        "timeline",
        "token_ids",
        "turn_boundary",
    )

    def __init__(
        self,
        request_id: str,
        index: int,
        token_ids: Tokens,
        params: SamplingParams,
        *,
        order: int,
        priority: int = 0,
        client: str = "",
        salt: str = "",
        turn_boundary: int = 0,
        arrival: float = 0.0,
        seed: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        leader: Optional["Sequence"] = None,
        timeline: Timeline | None = None,
        grammar: OutputGrammar | None = None,
        scores_prompt: bool = True,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.params = params
        self.order = order
        self.priority = priority
        self.client = client
        """Whose it is: clients take turns; "" = nobody knows."""
        self.salt = salt
        self.turn_boundary = turn_boundary
        self.arrival = arrival
        self.seed = seed
        self.stop_token_ids = stop_token_ids
        """All ids that end it: the model's end tokens (unless ignored) and the request's own."""
        self.leader = leader
        """The sibling whose prefill leaves the checkpoint this one resumes from (n > 1)."""
        self.timeline = timeline
        """None = nobody traces it."""
        self.grammar = grammar
        """What its next token may be follows from all before it: it is in one launched step at most."""
        self.started = 0.0
        """When its first piece was scheduled; 0 = not yet."""
        self.deferred = False
        """It waited for the checkpoint of another prompt, or still does: once is enough."""
        self.prompt_len = len(token_ids)
        self.token_ids = token_ids
        """The prompt, which siblings share; from `make_room` on the prompt, then the output: one piece of
        memory, so that a prefix of both needs no copy."""
        self.known = self.prompt_len
        self.target = self.prompt_len
        """Tokens to prefill before it decodes: the prompt, and after a preemption the output so far."""
        self.phase = Phase.WAITING
        self.allocation: SequenceAllocation | None = None
        self.in_flight = 0
        """Launched steps that name this sequence and have not committed."""
        self.finish_reason: FinishReason | None = None
        self.cached_tokens = 0
        self.recomputed_tokens = 0
        self.miss_cause = ""
        self.preemptions = 0
        self.prompt_done = False
        self.reported = False
        """A first delta (with the cached tokens) has been sent."""
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            [None] if params.prompt_logprobs >= 0 and scores_prompt else None
        )

    def make_room(self) -> None:
        """Take memory for the prompt and all that may be generated; once, when the sequence starts."""
        if len(self.token_ids) < self.longest:
            room: Tokens = np.empty(self.longest, np.int32)
            room[: self.known] = self.token_ids
            self.token_ids = room

    @property
    def longest(self) -> int:
        """Tokens that it may grow to."""
        return self.prompt_len + self.params.max_tokens

    @property
    def key(self) -> tuple[str, int]:
        return self.request_id, self.index

    @property
    def row(self) -> int:
        """Its row of the persistent batch; -1 while it is not admitted."""
        return self.allocation.row if self.allocation is not None else -1

    @property
    def outputs(self) -> int:
        """Output tokens on the host."""
        return self.known - self.prompt_len

    def known_token_ids(self) -> Tokens:
        """Prompt and committed output."""
        return self.token_ids[: self.known]

    def rank(self) -> int:
        """Who goes on when memory is short: the last one is preempted first. Age alone: a priority decides
        who of a client starts, and takes nothing from what runs."""
        return self.order
