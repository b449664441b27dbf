"""`Exchange`: state of one request of the proxy, from its headers to the end of its response."""

from dataclasses import dataclass, field

from mamba_edge.exchange.body_budget import BodyShare
from mamba_gateway.admission.usage_meter import UsageMeter
from mamba_gateway.endpoint_picker.pick_trace import PickTrace
from mamba_gateway.endpoint_picker.request_head import RequestHead
from mamba_gateway.metrics.gateway_metrics import UNKNOWN_MODEL
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.routing_fields import RoutingFields
from mamba_gateway.routing.routing_record import RoutingRecord
from mamba_gateway.routing.scoring import Cost

OK = 200


@dataclass(slots=True)
class Exchange:
    """Of one stream of the proxy; `arrival` in monotonic seconds."""

    head: RequestHead
    arrival: float
    trace: PickTrace
    share: BodyShare
    key: str | None = None
    """Name of the key that it came with; None = no keys are asked for."""
    body: bytearray = field(default_factory=bytearray)
    body_ended: bool = True
    """The last body message ended the stream; False = trailers follow."""
    fields: RoutingFields = field(default_factory=RoutingFields)
    model: str = UNKNOWN_MODEL
    """Label of its model."""
    record: RoutingRecord | None = None
    prompt: PromptPrefix | None = None
    cost: Cost | None = None
    """Of the engine that has it."""
    ticket: int = 0
    sent: bool = False
    """The proxy has been told where to, and the engine begins with the prompt."""
    status: int = 0
    """0 = no answer has begun."""
    answer: UsageMeter = field(default_factory=UsageMeter)
    readable: bool = True
    """The answer comes as it is, not compressed."""
    limit_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Rate-limit headers that are added to the response: (name, value) as bytes."""

    def response_headers(self) -> list[tuple[str, bytes]]:
        """`limit_headers` as the messages of the proxy hold them: (name as text, value as bytes)."""
        return [(name.decode(), value) for name, value in self.limit_headers]

    def used(self, prompt_tokens: float) -> float:
        """Count tokens of prompt and answer, as of what the gateway relays; none of a refusal. Of a request
        that was given up before the answer began the prompt counts: the engine has begun with it."""
        if not self.status:
            return prompt_tokens if self.sent else 0.0
        if self.status != OK:
            return 0.0
        # A compressed answer tells nothing, and its prompt was computed all the same.
        return self.answer.used(prompt_tokens) if self.answer.size else prompt_tokens
