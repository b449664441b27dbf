"""`PendingAudit`: one answer that is to be computed once more, and what has come of that so far."""

from dataclasses import dataclass, field
from itertools import islice

from mamba_server.cache import Lineage, SequenceAllocation, Tokens
from mamba_server.engine.audits.audit_log import AuditResult, Outcome
from mamba_server.engine.audits.distance import Bounds
from mamba_server.engine.sequences.sequence import Phase, Sequence
from mamba_server.engine.sequences.served_scores import Resumption, ServedScores
from mamba_server.wire import SamplingParams

MOST_CHECKPOINTS = 8
"""Checkpoints of one lineage whose states are compared: the one that was resumed from, and ancestors."""


@dataclass(slots=True)
class PendingAudit:
    """One answer that is to be computed once more, and how far that is."""

    request_id: str
    choice: int
    prompt_len: int
    token_ids: Tokens
    """Tokens of the prompt and the answer."""
    salt: str
    adapter: str
    """Fingerprint of the answer's adapter; "" = none."""
    served: ServedScores
    traceparent: str = ""
    """Span of the request; "" = it is not traced."""
    began: float = 0.0
    """Time at which its last try began; 0 = none has."""
    tries: int = 0
    """Number of times that the audit has begun."""
    sequence: Sequence | None = None
    """Tokens as a prompt, for the runner; None = the audit is not under way."""
    plain: list[float] = field(default_factory=list)
    """Log-probabilities of the answer's tokens, computed without cached states and drafts."""
    state_distance: float | None = None
    """Largest distance of a state so far."""
    _checkpoints: dict[int, Lineage] = field(default_factory=dict)
    """Lineage of each checkpoint that the answer depends on, by depth."""

    def begin(self, allocation: SequenceAllocation, now: float = 0.0) -> None:
        """Begin at the first token, in the memory of `allocation`, at `now` seconds of the engine's clock."""
        self.tries += 1
        self.began = now
        self.plain, self.state_distance = [], None
        self._checkpoints = {
            lineage.depth: lineage
            for resumption in self.served.resumptions
            if resumption.lineage is not None
            for lineage in islice(resumption.lineage.chain(), MOST_CHECKPOINTS)
        }
        self.sequence = Sequence(
            self.request_id, self.choice, self.token_ids, SamplingParams(max_tokens=0, prompt_logprobs=0),
            order=0, salt=self.salt, adapter=self.adapter, unscored=self.prompt_len - 1,
        )  # fmt: skip
        # No request waits for it, whatever becomes of its steps.
        self.sequence.phase = Phase.FINISHED
        self.sequence.allocation = allocation

    @property
    def allocation(self) -> SequenceAllocation:
        """Memory of an audit that is under way."""
        assert self.sequence is not None
        assert self.sequence.allocation is not None
        return self.sequence.allocation

    @property
    def last(self) -> int:
        """Number of tokens that are computed: all but the last one, which is only predicted."""
        return len(self.token_ids) - 1

    def next_stop(self, chunk: int) -> int:
        """Return the end of the next piece: at most a chunk on, and at the next checkpoint to compare."""
        start = self.allocation.depth
        comparable = [depth for depth in self._checkpoints if start < depth]
        return min(start + chunk, self.last, *comparable)

    def checkpoint_at(self, depth: int) -> Lineage | None:
        """Return the lineage of the checkpoint at `depth` that the answer depends on; None = none."""
        return self._checkpoints.get(depth)

    def resumption_before(self, output: int) -> Resumption:
        """Return the resumption after which output token number `output` was computed."""
        tokens = self.prompt_len + output
        return [each for each in self.served.resumptions if each.known_tokens <= tokens][-1]

    def result(
        self,
        outcome: Outcome,
        reason: str = "",
        *,
        bounds: Bounds | None = None,
        distance: float | None = None,
    ) -> AuditResult:
        """Return the result, which names the checkpoint that the prompt resumed from."""
        depth, lineage = self.served.resumptions[0].depth, self.served.resumptions[0].lineage
        outputs = len(self.token_ids) - self.prompt_len
        return AuditResult(
            self.request_id, self.choice, outcome, len(self.token_ids), outputs, depth, lineage, reason,
            distance, bounds.scores_of(outputs) if bounds else None, self.state_distance,
            accepted=self.served.accepted,
        )  # fmt: skip
