"""The state of a prompt, computed and kept for somebody who comes for it: another engine, or a session file.

The endpoints that hand prompts over and those that save sessions call it.
"""

from mamba_server.api.answers.active_request import ActiveRequest
from mamba_server.api.serving import Serving
from mamba_server.wire import AddRequest, HandOver
from mamba_telemetry.request_trace import UNTRACED, RequestTrace
from mamba_text.sequence_text import TextVisibility
from mamba_text.tokenizer import Tokenizer

NO_HAND_OVER = HandOver("", 0, 0.0)


async def kept_state(
    serving: Serving, tokenizer: Tokenizer, add: AddRequest, trace: RequestTrace = UNTRACED
) -> tuple[HandOver, int]:
    """Compute the prompt of `add` and keep its state; return the export and the tokens that were cached.

    Raises ApiError.
    """
    hand_over = NO_HAND_OVER
    visibility = TextVisibility((), special_tokens=False, stop=False)
    active = ActiveRequest(serving.engine, tokenizer, [add], visibility, serving.metrics, trace)
    async with active:
        async for update in active.updates():
            hand_over = update.hand_over or hand_over
    return hand_over, active.counts.cached_total
