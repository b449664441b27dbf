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
    """State of one stream of the proxy, that is, of one request. `arrival` is monotonic, in seconds."""

    head: RequestHead
    arrival: float
    trace: PickTrace
    share: BodyShare
    key: str | None = None
    """Name of the request's API key; None = no keys are required."""
    body: bytearray = field(default_factory=bytearray)
    body_ended: bool = True
    """Whether the last message with a part of the body ended the stream; False = trailers follow."""
    fields: RoutingFields = field(default_factory=RoutingFields)
    model: str = UNKNOWN_MODEL
    """Model of the request, as a label of metrics."""
    record: RoutingRecord | None = None
    prompt: PromptPrefix | None = None
    cost: Cost | None = None
    """Cost at the engine that the request was sent to."""
    ticket: int = 0
    sent: bool = False
    """Whether the proxy has received the choice, so that the engine computes the prompt."""
    status: int = 0
    """HTTP status of the answer; 0 = the answer has not begun."""
    answer: UsageMeter = field(default_factory=UsageMeter)
    readable: bool = True
    """Whether the answer is uncompressed, so that its tokens can be counted."""
    limit_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Rate-limit headers to add to the answer: (name, value) as bytes."""

    def response_headers(self) -> list[tuple[str, bytes]]:
        """Return `limit_headers` in the form of the proxy's messages: (name as text, value as bytes)."""
        return [(name.decode(), value) for name, value in self.limit_headers]

    def used(self, prompt_tokens: float) -> float:
        """Return the tokens of prompt and answer, counted as for relayed requests; 0 for a refused request.

        A request that was abandoned before its answer began is charged for its prompt, which the engine has
        begun to compute.
        """
        if not self.status:
            return prompt_tokens if self.sent else 0.0
        if self.status != OK:
            return 0.0
        # A compressed answer cannot be read, but its prompt was computed.
        return self.answer.used(prompt_tokens) if self.answer.size else prompt_tokens
