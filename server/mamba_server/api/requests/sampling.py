"""From a validated request to the engine's sampling parameters and lengths. Pure.

The endpoints that generate use it. It checks what depends on the model: lengths and token ids.
"""

from mamba_api.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.requests.errors import ContextTooLong
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_server.wire import SamplingParams, ThoughtBudget
from mamba_text.generation_defaults import GenerationDefaults

MIN_TEMPERATURE = 1e-30
"""Temperature below which decoding is greedy: the sampler divides float32 numbers by the temperature."""
COMPLETION_MAX_TOKENS = 16
"""Default of `max_tokens` of completions, as in the OpenAI reference; a chat may fill the context."""


def output_tokens(request: GenerationRequest, prompt_len: int, limits: ModelLimits) -> int:
    """Return the maximum number of tokens to generate after a prompt of this length.

    0 means that the prompt is only read. Raises ContextTooLong.
    """
    chat = isinstance(request, ChatCompletionRequest)
    param = "messages" if chat else "prompt"
    room = limits.max_model_len - prompt_len
    if room < (0 if request.max_tokens == 0 else 1):
        raise ContextTooLong(
            f"This model's maximum context length is {limits.max_model_len} tokens, and the prompt alone has "
            f"{prompt_len}. Shorten the {param}.",
            param=param,
        )
    tokens, field = request.max_tokens, "max_tokens"
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        tokens, field = request.max_completion_tokens, "max_completion_tokens"
    if tokens is None:
        return room if chat else min(COMPLETION_MAX_TOKENS, room)
    if tokens > room:
        raise ContextTooLong(
            f"{field}: {tokens} tokens were requested, and at most {room} are left after this prompt. This "
            f"model's maximum context length is {limits.max_model_len} tokens, of which the prompt takes "
            f"{prompt_len}.",
            param=field,
        )
    return tokens


def prompt_alternatives(request: GenerationRequest) -> int | None:
    """Return the number of alternatives for each prompt token; None if prompt tokens are not scored."""
    numbers = [request.prompt_logprobs]
    if isinstance(request, CompletionRequest) and request.echo:
        numbers.append(request.logprobs)
    return max((number for number in numbers if number is not None), default=None)


def sampling_params(
    request: GenerationRequest,
    defaults: GenerationDefaults,
    limits: ModelLimits,
    max_tokens: int,
    grammar: str = "",
    thoughts: ThoughtBudget | None = None,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> SamplingParams:
    """Return the engine's parameters: the request's values, else the model's defaults, else neutral ones.

    Raises InvalidRequest.

    Args:
        request: the client's request.
        defaults: defaults of the model.
        limits: limits of the model, against which token ids are checked.
        max_tokens: largest number of tokens of the output.
        grammar: grammar of the output; "" = unrestricted.
        thoughts: limit on the thoughts; None = unlimited.
        bad_words: sequences of token ids that must not occur.
    """
    bias = {int(key): value for key, value in (request.logit_bias or {}).items()}
    limits.check_ids("logit_bias", bias)
    limits.check_ids("allowed_token_ids", request.allowed_token_ids or ())
    stop_token_ids = _stop_token_ids(request, defaults, limits)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens: {min_tokens} is more than the {max_tokens} tokens allowed for the output",
            param="min_tokens",
        )
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_temperature(request, defaults),
        top_k=max(0, int(_first(request.top_k, defaults.top_k, 0))),
        top_p=_first(request.top_p or None, defaults.top_p, 1.0),
        min_p=_first(request.min_p, defaults.min_p, 0.0),
        seed=request.seed,
        repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=_first(request.presence_penalty, 0.0),
        frequency_penalty=_first(request.frequency_penalty, 0.0),
        logit_bias=bias,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=stop_token_ids,
        logprobs=_logprobs(request),
        prompt_logprobs=-1 if (number := prompt_alternatives(request)) is None else number,
        grammar=grammar,
        thought_budget=thoughts,
        allowed_token_ids=tuple(dict.fromkeys(request.allowed_token_ids or ())),
        bad_words=bad_words,
    )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _temperature(request: GenerationRequest, defaults: GenerationDefaults) -> float:
    """Return the temperature; 0 = greedy decoding, which `top_p` 0 asks for, too."""
    temperature = _first(request.temperature, defaults.temperature, 1.0)
    return 0.0 if temperature < MIN_TEMPERATURE or request.top_p == 0 else temperature


def _stop_token_ids(
    request: GenerationRequest, defaults: GenerationDefaults, limits: ModelLimits
) -> tuple[int, ...]:
    """Return the tokens that end an answer, beyond those that the engine knows as the model's."""
    token_ids = list(request.stop_token_ids or ())
    limits.check_ids("stop_token_ids", token_ids)
    if not request.ignore_eos:
        token_ids += [item for item in defaults.eos_token_ids if item not in limits.eos_token_ids]
    return tuple(dict.fromkeys(token_ids))


def _logprobs(request: GenerationRequest) -> int:
    """Return the number of alternatives for each token of the answer; -1 = tokens are not scored."""
    if isinstance(request, CompletionRequest):
        return -1 if request.logprobs is None else request.logprobs
    if isinstance(request, ChatCompletionRequest) and request.logprobs:
        return request.top_logprobs or 0
    return -1
