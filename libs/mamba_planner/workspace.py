"""The most memory that one step takes beside weights and arena. Pure arithmetic.

What the layers hold at once, stage by stage, as the model's code does it; where that would grow with the
batch the engine works in blocks, whose sizes stand here, so that what is planned is what is done. A test
measures both.
"""

from mamba_planner.arithmetic import DTYPE_BYTES
from mamba_planner.model_config import GatedDeltaConfig, MambaConfig, ModelConfig

LOGIT_ROWS = 256
"""Rows whose logits are computed together."""
BLOCK_LOGITS = 1 << 22
"""Most logits that are scored together, or sampled from by what copies them (or one row)."""
SCANNED_STATES = 1 << 24
SCANNED_CHUNKS = 32
"""Most elements of states, and most chunks, that are scanned together (or those of one piece)."""
CHUNK = {"cpu": 48, "cuda": 64}
"""Tokens of a prefill chunk, the smallest piece of a prompt, by the kind of device. Right for a GPU; on a
CPU a step beside answers should be short, and with less the step's fixed cost would hold up the prompt."""
_PAIRS = 1 << 23
"""Elements of the products of positions within chunks that the scan holds at once."""
_GATHERED = 1 << 23
"""Elements of states that a decode gathers at once."""
_SOLVED = 64
"""Tokens that the gated delta rule solves for together."""
_QUERY_BLOCK = 256
"""Rows of a piece with context that are attended together."""
_EXTRA_CHUNKS = 8
"""A piece is cut at its checkpoints too."""
_SAMPLING_COPIES = 8
"""Most copies of a block of logits that sampling holds: penalties, truncation, noise, log-probabilities."""
_PLANS = 160
"""Bytes of index tensors a token."""


def scanned_chunks(mixer: MambaConfig | GatedDeltaConfig) -> int:
    """Chunks of pieces that are scanned together."""
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
) -> int:
    """Peak bytes of one step. `tokens`: its budget; `running`: most sequences; `longest`: tokens of one;
    `chunk`: tokens of a prefill chunk.
    """
    size, d = DTYPE_BYTES[dtype], model.hidden_size
    stages = [3 * 4 * d * tokens]  # the norm in float32
    if (mamba := model.mamba) is not None:
        stages.append(_mamba(mamba, size, tokens, min(running, tokens), chunk))
    if (delta := model.gated_delta) is not None:
        stages.append(_gated_delta(delta, size, tokens, min(running, tokens)))
    stages.append(_attention(model, size, tokens, longest))
    if "mamba_attention" in model.layers:
        stages.append(sum(stages))
    stages.append(_feed_forward(model) * size * tokens)
    residual = d * (2 * (4 if model.residual_in_fp32 else size) + 2 * size)
    layers = tokens * (residual + _PLANS) + max(stages) // tensor_parallel
    return max(layers, _sampling(model, size, tokens, running) // tensor_parallel)


def captured_bytes(model: ModelConfig, dtype: str, tensor_parallel: int = 1) -> int:
    """Count the bytes that captured decode steps keep beside all other steps: logits of as many rows as the
    head is multiplied for together, as the product gives them and in float32. However few run: fewer would
    leave room for more, and plans of one GPU could not be compared."""
    return LOGIT_ROWS * model.vocab_size * (4 + DTYPE_BYTES[dtype]) // tensor_parallel


def _mamba(mamba: MambaConfig, size: int, tokens: int, rows: int, chunk: int) -> int:
    inner, H, shared = mamba.inner, mamba.heads, mamba.groups * mamba.state_size
    # Projection, float32 output; then either the convolved copy and the scan, or the gated norm.
    kept = tokens * ((inner + mamba.conv_dim + H) * size + inner * 4)
    state = inner * mamba.state_size
    # One piece of all tokens, or many short ones; of these initial and passing states are held as well.
    whole, several = -(-tokens // chunk) + _EXTRA_CHUNKS, min(scanned_chunks(mamba), rows)
    positions = max(whole, several) * chunk
    within = max(min(_PAIRS, positions * H * chunk), H * chunk * chunk)
    scan = (
        positions * 4 * (5 * inner + 4 * shared + 8 * H)
        + 4 * (within + within // chunk * 2 * mamba.head_dim + within * mamba.groups // H)
        + 4 * max(whole + 3, 3 * several) * state
    )
    convolved = tokens * mamba.conv_dim * size
    prefill = convolved * 2 + scan
    gathered = min(rows * state, max(_GATHERED, state))
    decode = convolved + rows * mamba.conv_kernel * mamba.conv_dim * (3 * size + 8) + 12 * gathered
    norm = tokens * inner * (3 * 4 + size)
    return kept + max(prefill, decode, norm)


def _gated_delta(delta: GatedDeltaConfig, size: int, tokens: int, rows: int) -> int:
    values, spread = delta.value_heads * delta.value_dim, delta.value_heads * delta.key_dim
    # Projection and output.
    kept = tokens * (delta.conv_dim + 2 * values + 2 * delta.value_heads) * size
    state = delta.state_elements
    convolved = tokens * delta.conv_dim * size
    # Queries, keys and values in float32, the first two once for each value head, and one more in between.
    wide = 4 * (3 * spread + values + 6 * delta.value_heads)
    widest = max(delta.value_dim, delta.key_dim)
    solved = 4 * delta.value_heads * _SOLVED * 6 * (_SOLVED + widest)
    # States where pieces begin, as stored and in float32, and some of the piece that is computed.
    states = (6 * min(scanned_chunks(delta), rows) + 4 * 6) * state
    prefill = 2 * convolved + tokens * wide + states + solved
    gathered = min(rows * state, max(_GATHERED, state))
    decode = rows * (delta.conv_kernel * delta.conv_dim * (3 * size + 8) + wide) + 16 * gathered
    norm = tokens * values * (3 * 4 + 2 * size)
    return kept + max(prefill, decode, norm)


def _attention(model: ModelConfig, size: int, tokens: int, longest: int) -> int:
    if (attention := model.attention) is None:
        return 0
    query, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    own = tokens * (query * (3 if attention.output_gate else 2) * 2 + 2 * keys) * size
    # Keys and values of the longest context, those of one head once more, which torch packs on a CPU with a
    # matrix unit, and the mask of a block of rows.
    context = longest * (2 * (keys + attention.head_dim) * size + _QUERY_BLOCK * (1 + size))
    return own + context


def _feed_forward(model: ModelConfig) -> int:
    """Elements a token."""
    widths = [0]
    if (mlp := model.mlp) is not None:
        widths.append(mlp.intermediate * (3 if mlp.gated else 2))
    if (moe := model.moe) is not None:
        per_token = moe.experts_per_token * (moe.intermediate * (3 if moe.gated else 2) + model.hidden_size)
        widths.append(per_token + moe.shared_intermediate * (3 if moe.gated else 2))
    return max(widths)


def _sampling(model: ModelConfig, size: int, tokens: int, running: int) -> int:
    rows, vocab = min(tokens, running, LOGIT_ROWS), model.vocab_size
    block = max(vocab, min(BLOCK_LOGITS, max(rows, tokens) * vocab))
    hidden = tokens * model.hidden_size * size
    # Counts of prompt and output tokens for penalties, doubled while they grow.
    counts = 2 * rows * vocab * 5
    return hidden + rows * vocab * (4 + size) + counts + _SAMPLING_COPIES * 4 * block
