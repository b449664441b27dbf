"""The largest memory that one step takes in addition to weights and arena. Pure arithmetic.

It counts what the layers hold at once, stage by stage, as the model's code does. Where that would grow with
the batch, the engine works in blocks, whose sizes are defined here, so that plan and code agree. A test
measures both. A piece is the part of one prompt that a step computes, and a chunk a run of its tokens that is
scanned as one.
"""

from mamba_api.choices import FP8_PAGES, KvCacheDtype
from mamba_planner.arithmetic import DTYPE_BYTES, layer_state, mixer_inputs, ring_inputs
from mamba_planner.model_config import GatedDeltaConfig, MambaConfig, ModelConfig, ShortConvConfig

LOGIT_ROWS = 256
"""Rows whose logits are computed together."""
BLOCK_LOGITS = 1 << 22
"""Maximum number of logits that are scored together, or sampled from with copies (or one row)."""
SCANNED_STATES = 1 << 24
SCANNED_CHUNKS = 32
"""Most elements of states, and most chunks, that are scanned together; a single piece may have more."""
CHUNK = {"cpu": 48, "cuda": 64}
"""Tokens of a prefill chunk, the smallest piece of a prompt, by kind of device. On a CPU a step that runs
together with answers should be short, but the fixed cost of a smaller step would delay the prompt."""
DRAFT_ROWS = 16
"""Maximum number of sequences of a step with drafts. The inputs of the drafts of each are kept."""
RING_LANES = 512
"""Maximum number of sequences whose states are written once in several tokens; other states are written each
time."""
_PAIRS = 1 << 23
"""Elements of the products of positions within chunks that the scan holds at once."""
_GATHERED = 1 << 23
"""Elements of states that a decode gathers at once."""
_SOLVED = 64
"""Tokens that the gated delta rule solves for together."""
_CHANNEL_PAIRS = 16 * 16
"""Pairs of tokens whose decays of all channels the rule holds at once."""
_QUERY_BLOCK = 256
"""Rows of a piece with context that are attended together."""
_EXTRA_CHUNKS = 8
"""Additional chunks of a piece, which is also cut at its checkpoints."""
_SAMPLING_COPIES = 8
"""Maximum copies of a block of logits in sampling: penalties, truncation, noise, log-probabilities."""
_COUNTS = 5
"""Bytes by which one token of the vocabulary is counted, for one sequence with penalties."""
_PLANS = 160
"""Bytes of index tensors per token."""


def scanned_chunks(mixer: MambaConfig | GatedDeltaConfig) -> int:
    """Return how many chunks of a step's prompts are scanned together, so that memory stays bounded."""
    return max(1, min(SCANNED_CHUNKS, SCANNED_STATES // mixer.state_elements))


def workspace_bytes(
    model: ModelConfig,
    dtype: str,
    *,
    tokens: int,
    running: int,
    longest: int,
    chunk: int,
    tensor_parallel: int = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
) -> int:
    """Return the peak bytes of one step.

    Args:
        model: the model.
        dtype: type of weights and activations.
        tokens: token budget of the step.
        running: maximum number of sequences.
        longest: maximum tokens of a sequence.
        chunk: tokens of a prefill chunk.
        tensor_parallel: number of devices.
        kv_cache_dtype: type of pages.
    """
    size, d = DTYPE_BYTES[dtype], model.hidden_size
    stages = [3 * 4 * d * tokens]  # the norm in float32
    if (mamba := model.mamba) is not None:
        stages.append(_mamba(mamba, size, tokens, min(running, tokens), chunk))
    if (delta := model.gated_delta) is not None:
        stages.append(_gated_delta(delta, size, tokens, min(running, tokens)))
    if (short := model.short_conv) is not None:
        stages.append(_short_conv(short, size, tokens, min(running, tokens)))
    narrow = _narrow_pages(model, dtype, tokens, longest) if kv_cache_dtype == FP8_PAGES else 0
    stages.append(_attention(model, size, tokens, longest) + narrow)
    if model.shared is not None:
        stages.append(_shared(model, size, tokens, longest) + narrow)
    if "mamba_attention" in model.layers:
        stages.append(sum(stages))
    stages.append(_feed_forward(model) * size * tokens)
    if model.draft_head:
        stages.append(_head(model, size, tokens))
    residual = d * (2 * (4 if model.residual_in_fp32 else size) + 2 * size)
    if model.shared is not None:
        # The embedding's rows until the last layer, and the result of a shared block.
        residual += 2 * d * size
    layers = tokens * (residual + _PLANS) + max(stages) // tensor_parallel
    return max(layers, _sampling(model, size, tokens, running) // tensor_parallel)


def captured_bytes(model: ModelConfig, dtype: str, tensor_parallel: int = 1) -> int:
    """Return the bytes that captured decode steps keep in addition to all other steps.

    These are the logits of as many rows as the head multiplies together, in the product's type and in
    float32. The number of running sequences does not matter: fewer would leave room for more, and plans for
    one GPU could not be compared.
    """
    return LOGIT_ROWS * model.vocab_size * (4 + DTYPE_BYTES[dtype]) // tensor_parallel


def draft_bytes(
    model: ModelConfig, dtype: str, *, drafts: int, running: int, tensor_parallel: int = 1
) -> int:
    """Return the bytes of the memory for drafts.

    It holds the results of the input projections for drafted tokens, copies of the state of one layer, counts
    of tokens for penalties, and hidden states for a head for drafts.

    Args:
        model: the model.
        dtype: type of weights and activations.
        drafts: most drafts of a sequence; 0 = no speculation.
        running: maximum number of sequences.
        tensor_parallel: number of devices.
    """
    if not drafts or not model.recurrent_layers:
        return 0
    lanes, layer, size = min(running, DRAFT_ROWS), layer_state(model, tensor_parallel), DTYPE_BYTES[dtype]
    # A copy has the type of the states, at most float32.
    copies = (lanes + 1) * (layer.conv * size + layer.ssm * 4)
    ring = model.recurrent_layers * lanes * drafts * mixer_inputs(model) * size // tensor_parallel
    counts = lanes * drafts * model.vocab_size * _COUNTS
    hidden = hidden_rows(running, lanes, drafts) * model.hidden_size * size if model.draft_head else 0
    return copies + ring + counts + hidden


def hidden_rows(running: int, lanes: int, drafts: int) -> int:
    """Return how many hidden states are kept for a head for drafts: of rows, padding and drafted tokens."""
    return 2 * running + 1 + lanes * drafts


def ring_bytes(model: ModelConfig, dtype: str, *, tokens: int, running: int, tensor_parallel: int = 1) -> int:
    """Return the bytes in which tokens' inputs are kept until a step adds them to the states.

    Args:
        model: the model.
        dtype: type of weights and activations.
        tokens: tokens after which a state is written; 0 = each step writes it.
        running: maximum number of sequences.
        tensor_parallel: number of devices.
    """
    if not tokens or not model.recurrent_layers:
        return 0
    inputs = min(running, RING_LANES) * (tokens - 1)
    return model.recurrent_layers * inputs * ring_inputs(model) * DTYPE_BYTES[dtype] // tensor_parallel


def _mamba(mamba: MambaConfig, size: int, tokens: int, rows: int, chunk: int) -> int:
    inner, H, shared = mamba.inner, mamba.heads, mamba.groups * mamba.state_size
    # Projection, float32 output; then either the convolved copy and the scan, or the gated norm.
    common = tokens * ((inner + mamba.conv_dim + H) * size + inner * 4)
    state = inner * mamba.state_size
    # One piece of all tokens, or many short ones, for which initial and passing states are held as well.
    single_piece, many_pieces = -(-tokens // chunk) + _EXTRA_CHUNKS, min(scanned_chunks(mamba), rows)
    positions = max(single_piece, many_pieces) * chunk
    within = max(min(_PAIRS, positions * H * chunk), H * chunk * chunk)
    scan = (
        positions * 4 * (5 * inner + 4 * shared + 8 * H)
        + 4 * (within + within // chunk * 2 * mamba.head_dim + within * mamba.groups // H)
        + 4 * max(single_piece + 3, 3 * many_pieces) * state
    )
    convolved = tokens * mamba.conv_dim * size
    prefill = convolved * 2 + scan
    gathered = min(rows * state, max(_GATHERED, state))
    decode = convolved + rows * mamba.conv_kernel * mamba.conv_dim * (3 * size + 8) + 12 * gathered
    norm = tokens * inner * (3 * 4 + size)
    return common + max(prefill, decode, norm)


def _short_conv(short: ShortConvConfig, size: int, tokens: int, rows: int) -> int:
    # Projection, inputs, result; then windows and sums in float32 of decodes, or of a block of a prompt.
    common = tokens * short.channels * 5 * size
    windows = rows * (short.conv_kernel - 1) * short.channels * size
    decode = rows * short.channels * (short.conv_kernel * (2 * size + 8) + 4)
    prefill = tokens * short.channels * (2 * size + 8)
    return common + windows + max(decode, prefill)


def _gated_delta(delta: GatedDeltaConfig, size: int, tokens: int, rows: int) -> int:
    values, spread = delta.value_heads * delta.value_dim, delta.value_heads * delta.key_dim
    # Projection and output.
    common = tokens * (delta.conv_dim + 2 * values + (1 + delta.decays) * delta.value_heads) * size
    if (rank := delta.gate_rank) is not None:
        # Products of the narrow rows are copied into one row with all inputs.
        common += tokens * (delta.conv_dim + delta.value_heads + 2 * rank + values + spread) * size
    state = delta.state_elements
    convolved = tokens * delta.conv_dim * size
    # Queries, keys and values in float32, the first two once for each value head, plus one intermediate.
    token_bytes = 4 * (3 * spread + values + (5 + 3 * delta.decays) * delta.value_heads)
    widest = max(delta.value_dim, delta.key_dim)
    solved = 4 * delta.value_heads * _SOLVED * 6 * (_SOLVED + widest)
    if delta.decays > 1:
        solved = max(solved, 4 * delta.value_heads * _CHANNEL_PAIRS * 2 * (delta.decays + 4))
    # States where pieces begin, as stored and in float32, and a few of the piece that is being computed.
    states = (6 * min(scanned_chunks(delta), rows) + 4 * 6) * state
    prefill = 2 * convolved + tokens * token_bytes + states + solved
    gathered = min(rows * state, max(_GATHERED, state))
    decode = rows * (delta.conv_kernel * delta.conv_dim * (3 * size + 8) + token_bytes) + 16 * gathered
    norm = tokens * values * (3 * 4 + 2 * size)
    return common + max(prefill, decode, norm)


def _head(model: ModelConfig, size: int, tokens: int) -> int:
    """Return the bytes that a step of a head for drafts takes."""
    assert model.attention is not None
    query = model.attention.heads * model.attention.head_dim
    return (
        tokens
        * size
        * (8 * model.hidden_size + 3 * query + 4 * model.attention.kv_heads * model.attention.head_dim)
    )


def _attention(model: ModelConfig, size: int, tokens: int, longest: int) -> int:
    if (attention := model.attention) is None:
        return 0
    query, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    projections = tokens * (query * (3 if attention.output_gate else 2) * 2 + 2 * keys) * size
    if (latent := attention.latent) is not None:
        widths = 2 * latent.own + latent.shared + 2 * latent.values
        projections += tokens * (attention.heads * widths + keys) * size
    # Keys and values of the longest context, a copy of those of one head, which torch packs on a CPU with a
    # matrix unit, and the mask of a block of rows.
    context = longest * (2 * (keys + attention.head_dim) * size + _QUERY_BLOCK * (1 + size))
    return projections + context


def _narrow_pages(model: ModelConfig, dtype: str, tokens: int, longest: int) -> int:
    """Return the bytes in which keys or values are rounded to FP8 and read back, where torch does both."""
    if (attention := model.attention) is None:
        return 0
    keys = attention.kv_heads * attention.head_dim
    # Rows in float32, their sizes, the same divided by scales, and bytes. float16 is read back by float32.
    return keys * (tokens * (3 * 4 + 1) + longest * (1 + (4 if dtype == "float16" else 0)))


def _shared(model: ModelConfig, size: int, tokens: int, longest: int) -> int:
    """Return the bytes of a shared transformer block, whose rows are twice as wide as the model's."""
    assert model.shared is not None
    assert model.attention is not None
    assert model.mlp is not None
    d, rank = model.hidden_size, model.shared.adapter_rank
    rows = 2 * 2 * d * size
    queries = model.attention.heads * model.attention.head_dim
    changes = (3 * rank + queries) * size if model.shared.attention_adapters else 0
    norm = 3 * 4 * 2 * d
    # On CPUs, what is activated is in float32.
    feed_forward = (4 * model.mlp.intermediate + rank + 2 * d) * size + 3 * model.mlp.intermediate * 4
    attention = _attention(model, size, tokens, longest) + tokens * changes
    return tokens * rows + max(attention, tokens * norm, tokens * feed_forward)


def _feed_forward(model: ModelConfig) -> int:
    """Return the elements that a feed-forward holds for each token."""
    widths = [0]
    if (mlp := model.mlp) is not None:
        widths.append(mlp.intermediate * (3 if mlp.gated else 2))
    if (moe := model.moe) is not None:
        inner, width = 3 if moe.gated else 2, moe.latent or model.hidden_size
        per_token = moe.experts_per_token * (moe.intermediate * inner + width)
        if moe.latent is None:
            widths.append(per_token + moe.shared_intermediate * inner)
        else:
            # The shared expert is a product of its own, beside the result of the others.
            widths.append(per_token + 2 * moe.latent)
            widths.append(moe.shared_intermediate * inner + model.hidden_size)
    return max(widths)


def _sampling(model: ModelConfig, size: int, tokens: int, running: int) -> int:
    rows, vocab = min(tokens, running, LOGIT_ROWS), model.vocab_size
    block = max(vocab, min(BLOCK_LOGITS, max(rows, tokens) * vocab))
    hidden = tokens * model.hidden_size * size
    # Counts of prompt and output tokens for penalties, doubled while they grow.
    counts = 2 * rows * vocab * _COUNTS
    return hidden + rows * vocab * (4 + size) + counts + _SAMPLING_COPIES * 4 * block
