"""A sequence in the engine: its tokens, its sampling parameters, and its phase."""

from enum import Enum
from typing import Optional

import msgspec
import numpy as np
import numpy.typing as npt

from mamba_server.cache import SequenceAllocation, Tokens
from mamba_server.engine.sequences.draft_record import DraftRecord
from mamba_server.engine.sequences.output_grammar import NextTokens
from mamba_server.engine.sequences.sequence_cost import SequenceCost
from mamba_server.engine.sequences.served_scores import ServedScores
from mamba_server.engine.sequences.timeline import Timeline
from mamba_server.wire import FinishReason, PrefixExplanation, SamplingParams, TokenLogprobs


class Phase(Enum):
    """Stage of a sequence between its arrival and its end."""

    ARRIVING = "arriving"
    """The state of its prompt is being fetched; the scheduler does not see it yet."""
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Sequence:
    """Prompt and output of one sequence.

    `known_tokens` tokens are on the host. Under overlap a launched step may have sampled one more: a decoding
    sequence at depth d has d + 1 tokens, and `known_tokens <= d + 1 <= known_tokens + 1` between steps. The
    depth is in its allocation.
    """

    __slots__ = (
        "adapter",
        "allocation",
        "arrival",
        "arrived",
        "cached_tokens",
        "client",
        "cost",
        "deferred",
        "draft_record",
        "explains",
        "explanation",
        "finish_reason",
        "grammar",
        "in_flight",
        "index",
        "known_tokens",
        "leader",
        "lost_cause",
        "miss_cause",
        "order",
        "params",
        "phase",
        "pins",
        "pooled",
        "preemptions",
        "priority",
        "prompt_done",
        "prompt_len",
        "prompt_logprobs",
        "recomputed_tokens",
        "reported",
        "reports_cost",
        "request_id",
        "salt",
        "seed",
        "served",
        "started",
        "stop_token_ids",
        "target",
        "timeline",
        "token_ids",
        "transfer_failed",
        "turn_boundary",
        "unscored",
        "whole_prompt",
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
        adapter: str = "",
        turn_boundary: int = 0,
        arrival: float = 0.0,
        seed: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        leader: Optional["Sequence"] = None,
        timeline: Timeline | None = None,
        grammar: NextTokens | None = None,
        scores_prompt: bool = True,
        whole_prompt: Tokens | None = None,
        pins: tuple[tuple[int, float], ...] = (),
        unscored: int = 0,
        explains: bool = False,
        account: int = 0,
        reports_cost: bool = False,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.params = params
        self.order = order
        self.priority = priority
        self.client = client
        """Client of the request, by which clients take turns; "" = unknown."""
        self.salt = salt
        self.adapter = adapter
        """Fingerprint of its adapter; "" = the base model computes it alone."""
        self.turn_boundary = turn_boundary
        self.arrival = arrival
        self.cost = SequenceCost(account)
        """Use of the engine so far."""
        self.reports_cost = reports_cost
        """Whether its deltas carry the cost."""
        self.arrived = False
        """Whether it has waited for a state from elsewhere."""
        self.seed = seed
        self.stop_token_ids = stop_token_ids
        """All ids that end the sequence: the model's end tokens (unless ignored) and the request's own."""
        self.leader = leader
        """Sibling whose prefill leaves the checkpoint from which this sequence resumes (n > 1)."""
        self.timeline = timeline
        """Timeline for the trace; None = not traced."""
        self.grammar = grammar
        """Restriction of the answer's tokens. Its next token depends on all before it, so the sequence is in
        one launched step at most."""
        self.started = 0.0
        """Time at which the first piece was scheduled; 0 = not yet."""
        self.deferred = False
        """Whether it waits, or has waited, for the checkpoint of another prompt; it does so at most once."""
        self.draft_record: DraftRecord | None = None
        """Worth of its drafts; None = it had none yet."""
        self.prompt_len = len(token_ids)
        self.token_ids = token_ids
        """Prompt, shared with siblings; from `make_room` on, prompt and output in one array, so that a prefix
        of both needs no copy."""
        self.whole_prompt = whole_prompt
        """Prompt of which `token_ids` is the part to hand over; None = nothing is handed over."""
        self.pins = pins
        """Prefixes of the prompt that are to stay: page-aligned depth, and seconds."""
        self.unscored = unscored
        """Number of the first tokens of the prompt after which nothing is scored."""
        self.served: ServedScores | None = None
        """Scores for an audit of the answer; None = it is not audited."""
        self.known_tokens = self.prompt_len
        self.target = self.prompt_len
        """Tokens to prefill before it decodes: the prompt, and after a preemption also the output so far."""
        self.phase = Phase.WAITING
        self.allocation: SequenceAllocation | None = None
        self.in_flight = 0
        """Number of launched steps that name this sequence and have not committed."""
        self.finish_reason: FinishReason | None = None
        self.cached_tokens = 0
        self.recomputed_tokens = 0
        self.miss_cause = ""
        self.lost_cause = ""
        """Cause of a miss that the cache cannot know: why a state that was to arrive did not."""
        self.transfer_failed = False
        """Whether a state that was to arrive from elsewhere did not, whatever the cause."""
        self.explains = explains
        """Whether the client asks for an explanation of what its prompt resumes."""
        self.explanation: PrefixExplanation | None = None
        """Explanation for the client, once the sequence has started."""
        self.preemptions = 0
        self.prompt_done = False
        self.reported = False
        """Whether the first delta (with the cached tokens) has been sent."""
        self.pooled: npt.NDArray[np.float32] | None = None
        """Sum of the hidden states of the prompt's tokens so far, or the last one; None = none is pooled."""
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            [None] if params.prompt_logprobs >= 0 and scores_prompt else None
        )

    def make_room(self) -> None:
        """Allocate an array for the prompt and all output; once, when the sequence starts."""
        if len(self.token_ids) < self.longest:
            room: Tokens = np.empty(self.longest, np.int32)
            room[: self.known_tokens] = self.token_ids
            self.token_ids = room

    def add_scores(self, start: int, scores: list[TokenLogprobs]) -> None:
        """Add the log-probabilities of the tokens behind `start` of the prompt.

        After a preemption the prompt is computed again, perhaps in other pieces: only scores that are missing
        are added.
        """
        complete = self.prompt_logprobs
        if complete is not None and start < len(complete):
            complete.extend(scores[len(complete) - start - 1 :])

    def add_pooled(self, start: int, pooled: npt.NDArray[np.float32]) -> None:
        """Add the pooled hidden states of a piece of the prompt that begins at `start`."""
        before = self.pooled if start else None
        self.pooled = pooled.copy() if before is None else before + pooled

    @property
    def longest(self) -> int:
        """Tokens that the sequence may grow to."""
        return self.prompt_len + self.params.max_tokens

    @property
    def scored_params(self) -> SamplingParams:
        """Parameters by which the runner samples: an audited answer is scored whether or not requested."""
        if self.served is None or self.params.logprobs >= 0:
            return self.params
        return msgspec.structs.replace(self.params, logprobs=0)

    @property
    def key(self) -> tuple[str, int]:
        return self.request_id, self.index

    @property
    def row(self) -> int:
        """Row of the persistent batch; -1 while it is not admitted."""
        return self.allocation.row if self.allocation is not None else -1

    @property
    def outputs(self) -> int:
        """Number of output tokens on the host."""
        return self.known_tokens - self.prompt_len

    @property
    def embedding(self) -> bytes:
        """Pooled hidden states of the prompt as float32 numbers; empty if none are pooled."""
        if self.pooled is None:
            return b""
        tokens = self.prompt_len if self.params.pooling == "mean" else 1
        return (self.pooled / np.float32(tokens)).astype("<f4").tobytes()

    def placement_ids(self) -> Tokens:
        """Return the tokens by which the cache places checkpoints, with those that another engine computes.

        Pieces then end where they end at an engine that computes the whole prompt, so the states have the
        same bits.
        """
        return self.known_token_ids() if self.whole_prompt is None else self.whole_prompt

    def known_token_ids(self) -> Tokens:
        """Return the prompt and the committed output."""
        return self.token_ids[: self.known_tokens]

    def last_tokens(self, count: int) -> Tokens:
        """Return a copy of the last `count` known tokens."""
        return self.token_ids[self.known_tokens - count : self.known_tokens].copy()

    def rank(self) -> int:
        """Return the order in which sequences keep their memory: the last one is preempted first.

        It is the age alone: a priority decides which sequence of a client starts, and takes nothing from
        those that run.
        """
        return self.order
