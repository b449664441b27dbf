"""From a validated request to what the engine is told: sampling parameters and lengths. Pure.

Used by the two generation endpoints. Checks what depends on the model: lengths and biases.
"""

from mamba_api.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.requests.errors import ContextTooLong
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_server.wire import SamplingParams
from mamba_text.generation_defaults import GenerationDefaults

LEAST_TEMPERATURE = 1e-30
"""Below it an answer is greedy: the sampler divides float32 numbers by it."""
COMPLETION_MAX_TOKENS = 16
"""What the OpenAI reference gives a completion that does not say; a chat may fill the context."""


def output_tokens(request: GenerationRequest, prompt_len: int, limits: ModelLimits) -> int:
    """Most tokens to generate for a prompt of this length; 0 = it is only read. Raises ContextTooLong."""
    chat = isinstance(request, ChatCompletionRequest)
    param = "messages" if chat else "prompt"
    room = limits.max_model_len - prompt_len
    if room < (0 if request.max_tokens == 0 else 1):
        raise ContextTooLong(
            f"This model's maximum context length is {limits.max_model_len} tokens, and the prompt alone has "
            f"{prompt_len}. Shorten the {param}.",
            param=param,
        )
    wanted, asked = request.max_tokens, "max_tokens"
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        wanted, asked = request.max_completion_tokens, "max_completion_tokens"
    if wanted is None:
        return room if chat else min(COMPLETION_MAX_TOKENS, room)
    if wanted > room:
        raise ContextTooLong(
            f"{asked}: at most {room} after this prompt, {wanted} were requested. This model's maximum "
            f"context length is {limits.max_model_len} tokens, of which the prompt takes {prompt_len}.",
            param=asked,
        )
    return wanted


def prompt_alternatives(request: GenerationRequest) -> int | None:
    """Alternatives that come with each token of the prompt; None = its tokens are not scored."""
    asked = [request.prompt_logprobs]
    if isinstance(request, CompletionRequest) and request.echo:
        asked.append(request.logprobs)
    return max((each for each in asked if each is not None), default=None)


def sampling_params(
    request: GenerationRequest,
    defaults: GenerationDefaults,
    limits: ModelLimits,
    max_tokens: int,
    grammar: str = "",
) -> SamplingParams:
    """The engine's parameters: the request's values, else the model's, else neutral ones."""

    def first(*values: float | None) -> float:
        return next(value for value in values if value is not None)

    bias = {int(key): value for key, value in (request.logit_bias or {}).items()}
    limits.check_ids("logit_bias", bias)
    limits.check_ids("stop_token_ids", request.stop_token_ids or ())
    if (request.min_tokens or 0) > max_tokens:
        raise InvalidRequest(
            f"min_tokens: {request.min_tokens} is more than the {max_tokens} tokens allowed for the output",
            param="min_tokens",
        )
    stop_ids = list(request.stop_token_ids or ())
    if not request.ignore_eos:
        stop_ids += [item for item in defaults.eos_token_ids if item not in limits.eos_token_ids]
    logprobs, prompt_logprobs = -1, -1
    if isinstance(request, CompletionRequest):
        if request.logprobs is not None:
            logprobs = request.logprobs
            prompt_logprobs = request.logprobs if request.echo else -1
    elif isinstance(request, ChatCompletionRequest) and request.logprobs:
        logprobs = request.top_logprobs or 0
    if request.prompt_logprobs is not None:
        prompt_logprobs = max(prompt_logprobs, request.prompt_logprobs)
    top_k = request.top_k if request.top_k is not None else defaults.top_k
    temperature = first(request.temperature, defaults.temperature, 1.0)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if temperature < LEAST_TEMPERATURE or request.top_p == 0 else temperature,
        top_k=max(0, top_k or 0),
        top_p=first(request.top_p or None, defaults.top_p, 1.0),
        min_p=first(request.min_p, defaults.min_p, 0.0),
        seed=request.seed,
        repetition_penalty=first(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=first(request.presence_penalty, 0.0),
        frequency_penalty=first(request.frequency_penalty, 0.0),
        logit_bias=bias,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=tuple(dict.fromkeys(stop_ids)),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )
