"""`Exchange`: state of one request of the proxy, from its headers to the end of its response."""

from dataclasses import dataclass, field

from mamba_edge.exchange.request_body import BodyShare
from mamba_gateway.body_fields import RoutingFields, UsageMeter
from mamba_gateway.endpoint_picker.pick_trace import PickTrace
from mamba_gateway.endpoint_picker.request_head import RequestHead
from mamba_gateway.metrics.gateway_metrics import UNKNOWN_MODEL
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.decision import RoutingRecord
from mamba_gateway.routing.scoring import Cost

OK = 200


@dataclass(slots=True)
class Exchange:
    """The state of one stream of the proxy; `arrival` in monotonic seconds."""

    head: RequestHead
    arrival: float
    trace: PickTrace
    share: BodyShare
    key: str | None = None
    """Name of the key that came with the request; None = no key is needed."""
    body: bytearray = field(default_factory=bytearray)
    body_ended: bool = True
    """Whether the last body message ended the stream; False = trailers follow."""
    fields: RoutingFields = field(default_factory=RoutingFields)
    model: str = UNKNOWN_MODEL
    """Label of the request's model."""
    record: RoutingRecord | None = None
    prompt: PromptPrefix | None = None
    cost: Cost | None = None
    """Cost at the engine that has the request."""
    ticket: int = 0
    sent: bool = False
    """Whether the proxy has got its choice, so that the engine begins with the prompt."""
    status: int = 0
    """Status of the answer; 0 = none has begun."""
    answer: UsageMeter = field(default_factory=UsageMeter)
    readable: bool = True
    """Whether the answer is not compressed."""
    limit_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Rate-limit headers that are added to the response: (name, value) as bytes."""

    def response_headers(self) -> list[tuple[str, bytes]]:
        """Return `limit_headers` as the messages of the proxy hold them: (name as text, value as bytes)."""
        return [(name.decode(), value) for name, value in self.limit_headers]

    def used(self, prompt_tokens: float) -> float:
        """Count tokens of prompt and answer, as the gateway's relay does; none of a refusal.

        The prompt of a request that was abandoned before the answer began counts: the engine has begun with
        it.
        """
        if not self.status:
            return prompt_tokens if self.sent else 0.0
        if self.status != OK:
            return 0.0
        # A compressed answer cannot be read, and its prompt was computed all the same.
        return self.answer.used(prompt_tokens) if self.answer.size else prompt_tokens
