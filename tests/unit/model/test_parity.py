"""Logits equal those of transformers in float32, however the prompt is cut and whoever shares the batch.

Where the code published with a model differs from transformers, the reference is changed to do as the
published code does, and the test says so. The reference is transformers' single pass over the whole text: its
cached continuation drops the lower clamp of the step size and is not used.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forced_instructions import FEWER_INSTRUCTIONS, forced_instructions
from gate_cases import LARGE
from mamba_planner.families.registry import load_model_config
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.batches import Driver, Run, Sequence, poisoned_views
from testmodels.checkpoints import (
    LATENT_EXPERTS,
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_kimi_linear,
    random_lfm2,
    random_mamba2,
    random_multimodal_lfm2,
    random_multimodal_qwen3_5,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_5,
    random_qwen3_next,
    random_zamba2,
)
from testmodels.published_limits import follow_published_limits

TOLERANCE = 1e-4
STEPS = 32
PROMPTS = (300, 65, 2, 137)

Write = Callable[..., Path]

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "two groups, all kinds of blocks": {},
    "one group, attention first": {"hybrid_override_pattern": "*M-M", "n_groups": 1, "seed": 1},
    "eight groups, single KV head": {
        "hybrid_override_pattern": "MM*-M*",
        "n_groups": 8,
        "num_key_value_heads": 1,
        "ssm_state_size": 8,
        "seed": 2,
    },
    "every bias there is": {
        "hybrid_override_pattern": "M*-M-",
        "use_bias": True,
        "mlp_bias": True,
        "use_conv_bias": True,
        "seed": 3,
    },
    "no convolution bias, tied embeddings": {
        "use_conv_bias": False,
        "tie_word_embeddings": True,
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "n_groups": 3,
        "seed": 4,
    },
    "recurrent blocks alone, short kernel": {
        "hybrid_override_pattern": "MM-M",
        "conv_kernel": 2,
        "ssm_state_size": 32,
        "seed": 5,
    },
    "long step sizes, silu": {
        "hybrid_override_pattern": "M-*M",
        "time_step_limit": [0.1, 1.0],
        "mlp_hidden_act": "silu",
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 8,
        "seed": 6,
    },
    "experts in groups": {
        "hybrid_override_pattern": "ME*EM-",
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "seed": 10,
    },
    "experts without groups, weights as they are": {
        "hybrid_override_pattern": "MEM*E",
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 28,
        "norm_topk_prob": False,
        "seed": 11,
    },
    "experts of a latent width": {**LATENT_EXPERTS, "n_group": 2, "topk_group": 1, "seed": 30},
}
GRANITE: dict[str, dict[str, Any]] = {
    "Granite, every factor": {},
    "Granite, attention first, a head of its own": {
        "layer_types": ["attention", "mamba", "mamba", "attention"],
        "tie_word_embeddings": False,
        "mamba_n_groups": 2,
        "mamba_conv_bias": False,
        "num_key_value_heads": 4,
        "seed": 7,
    },
    "Granite, biases, no factors": {
        "mamba_proj_bias": True,
        "attention_bias": True,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "seed": 8,
    },
    "Granite, rotary positions": {"position_embedding_type": "rope", "seed": 14},
    "Granite, experts": {"num_local_experts": 8, "num_experts_per_tok": 3, "seed": 9},
}
MAMBA2: dict[str, dict[str, Any]] = {
    "Mamba2 alone, tied, float32 stream": {},
    "Mamba2 alone, biases, one group": {
        "tie_word_embeddings": False,
        "use_bias": True,
        "n_groups": 1,
        "residual_in_fp32": False,
        "seed": 12,
    },
}
BAMBA: dict[str, dict[str, Any]] = {
    "Bamba, half of each head turned": {},
    "Bamba, biases, attention first": {
        "attn_layer_indices": [0, 2],
        "mamba_proj_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "seed": 13,
    },
}
FALCON_H1: dict[str, dict[str, Any]] = {
    "Falcon-H1, every factor": {},
    "Falcon-H1, a norm, biases": {
        "mamba_rms_norm": True,
        "mamba_n_groups": 2,
        "mamba_proj_bias": True,
        "projectors_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "seed": 15,
    },
    "Falcon-H1, a norm before the gate": {
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": True,
        "mamba_n_groups": 2,
        "seed": 39,
    },
}
QWEN3_NEXT: dict[str, dict[str, Any]] = {
    "Qwen3-Next, experts and one dense layer": {},
    "Qwen3-Next, dense, biases": {
        "num_experts": 0,
        "linear_num_key_heads": 6,
        "attention_bias": True,
        "seed": 16,
    },
}
QWEN3_5: dict[str, tuple[Write, dict[str, Any]]] = {
    "Qwen3.5, three value heads for each key head": (random_qwen3_5, {"seed": 17}),
    "Qwen3.5, tied, a vision tower, biases": (
        random_multimodal_qwen3_5,
        {
            "linear_num_value_heads": 3,
            "linear_num_key_heads": 3,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "seed": 18,
        },
    ),
    "Qwen3.5, one tensor for all experts": (
        random_multimodal_qwen3_5,
        {"num_experts": 8, "linear_num_value_heads": 4, "stacked_experts": True, "seed": 19},
    ),
    "Qwen3.5, tensors for each expert": (random_qwen3_5, {"num_experts": 8, "seed": 20}),
}
OLMO_HYBRID: dict[str, tuple[Write, dict[str, Any]]] = {
    "OLMo hybrid, rotary positions": (random_olmo_hybrid, {"seed": 21}),
    "OLMo hybrid, no positions, names of modules": (
        random_olmo_hybrid,
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
            "renamed": False,
            "num_key_value_heads": 4,
            "seed": 22,
        },
    ),
    "OLMo hybrid, biases, attention first": (
        random_olmo_hybrid,
        {
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "num_hidden_layers": 3,
            "linear_num_key_heads": 6,
            "attention_bias": True,
            "seed": 23,
        },
    ),
    "OLMo hybrid, positive eigenvalues, default shapes": (
        random_olmo_hybrid,
        {
            "linear_allow_neg_eigval": False,
            "linear_num_value_heads": None,
            "linear_num_key_heads": None,
            "linear_value_head_dim": None,
            "linear_key_head_dim": None,
            "linear_conv_kernel_dim": 3,
            "seed": 24,
        },
    ),
}
LFM2: dict[str, tuple[Write, dict[str, Any]]] = {
    "LFM2, dense": (random_lfm2, {"seed": 25}),
    "LFM2, biases, tied, a long convolution": (
        random_lfm2,
        {"conv_bias": True, "tie_word_embeddings": True, "conv_L_cache": 5, "seed": 26},
    ),
    "LFM2, a vision tower, widths as they are": (
        random_multimodal_lfm2,
        {"block_auto_adjust_ff_dim": False, "num_key_value_heads": 4, "conv_L_cache": 2, "seed": 27},
    ),
    "LFM2, experts": (random_lfm2, {"num_experts": 8, "conv_bias": True, "seed": 28}),
    "LFM2, experts without a correction": (
        random_lfm2,
        {
            "num_experts": 6,
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
            "num_dense_layers": 0,
            "seed": 29,
        },
    ),
}
ZAMBA2: dict[str, tuple[Write, dict[str, Any]]] = {
    "Zamba2, two shared blocks": (random_zamba2, {"seed": 31}),
    "Zamba2, one block, rotary positions, changes of attention": (
        random_zamba2,
        {
            "num_mem_blocks": 1,
            "use_mem_rope": True,
            "use_shared_attention_adapter": True,
            "num_key_value_heads": 4,
            "seed": 32,
        },
    ),
    "Zamba2, more blocks than uses, biases, a head of its own": (
        random_zamba2,
        {
            "num_mem_blocks": 4,
            "add_bias_linear": True,
            "tie_word_embeddings": False,
            "mamba_ngroups": 1,
            "seed": 33,
        },
    ),
    "Zamba2, shared block first, silu": (
        random_zamba2,
        {
            "layers_block_type": ["hybrid", "hybrid", "mamba"],
            "num_hidden_layers": 3,
            "hidden_act": "silu",
            "use_mem_rope": True,
            "mamba_d_conv": 2,
            "seed": 34,
        },
    ),
}
KIMI_LINEAR: dict[str, tuple[Write, dict[str, Any]]] = {
    "Kimi-Linear, experts behind a dense layer": (random_kimi_linear, {"seed": 35}),
    "Kimi-Linear, experts in groups, attention first": (
        random_kimi_linear,
        {
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "num_hidden_layers": 3,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "norm_topk_prob": False,
            "seed": 36,
        },
    ),
    "Kimi-Linear, one narrow head, a short convolution": (
        random_kimi_linear,
        {
            "linear_num_heads": 1,
            "linear_head_dim": 7,
            "linear_conv_kernel_dim": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "kv_lora_rank": 40,
            "v_head_dim": 9,
            "seed": 37,
        },
    ),
    "Kimi-Linear, dense, the rule alone but for one layer": (
        random_kimi_linear,
        {
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense"] * 4,
            "linear_head_dim": 32,
            "rms_norm_eps": 1e-3,
            "seed": 38,
        },
    ),
}
FAMILIES: dict[str, tuple[Write, dict[str, Any]]] = {
    **{name: (random_nemotron_h, fields) for name, fields in CHECKPOINTS.items()},
    **{name: (random_granite, fields) for name, fields in GRANITE.items()},
    **{name: (random_bamba, fields) for name, fields in BAMBA.items()},
    **{name: (random_falcon_h1, fields) for name, fields in FALCON_H1.items()},
    **{name: (random_qwen3_next, fields) for name, fields in QWEN3_NEXT.items()},
    **QWEN3_5,
    **OLMO_HYBRID,
    **LFM2,
    **ZAMBA2,
    **KIMI_LINEAR,
    **{name: (random_mamba2, fields) for name, fields in MAMBA2.items()},
}


def readable(name: str) -> str:
    return name.replace(" ", "-")


Pair = tuple[HybridModel, Any, Path]


def load(directory: Path) -> HybridModel:
    config = load_model_config(directory)
    return HybridModel.load(config, directory, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return our model, the reference and their folder."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    write, fields = FAMILIES[request.param]
    directory = write(tmp_path_factory.mktemp("parity"), **fields)
    ours = load(directory)
    # A text model reads Qwen3.5 with its vision tower; LFM2 is read as it was written.
    reads = AutoModelForImageTextToText if write is random_multimodal_lfm2 else AutoModelForCausalLM
    reference = reads.from_pretrained(directory, dtype=torch.float32).eval()
    follow_published_limits(reference)
    if ours.config.tie_embeddings:
        reference.lm_head.weight = reference.get_input_embeddings().weight
    return ours, reference, directory


def test_small_steps_of_nemotron_h_are_not_made_larger(tmp_path: Path) -> None:
    """Heads that keep their state for long have steps far below `time_step_min`."""
    from transformers import AutoModelForCausalLM

    directory = random_nemotron_h(tmp_path, hybrid_override_pattern="M-M*-M")
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, tensor in reference.named_parameters():
            if name.endswith("dt_bias"):
                tensor.fill_(-8.0)
            if name.endswith("A_log"):
                tensor.copy_(torch.linspace(0, 2.77, len(tensor)))
    reference.save_pretrained(directory)
    follow_published_limits(reference)
    config = load_model_config(directory)
    ours = HybridModel.load(config, directory, device=torch.device("cpu"), dtype=torch.float32)
    cache = poisoned_views(config, slabs=3, pages=40, page_size=16, dtype=torch.float32)
    tokens = torch.randint(0, 256, (400,), generator=torch.Generator().manual_seed(1)).tolist()
    sequence = Sequence(tokens, slot=1, pages=list(range(1, 27)))
    driver = Driver(ours, cache, guard=False)
    got = [driver.step([Run(sequence, 390, logits="all")])]
    got += [driver.step([Run(sequence, 1, decode=True, logits="all")]) for _ in range(10)]
    torch.testing.assert_close(torch.cat(got), reference_logits(reference, tokens), rtol=1e-3, atol=1e-3)


def test_attention_of_nemotron_h_adds_the_biases_of_its_projections(tmp_path: Path) -> None:
    """The code published with the models reads `attention_bias`, transformers does not."""
    from transformers import AutoModelForCausalLM

    directory = random_nemotron_h(tmp_path, hybrid_override_pattern="M*-*", attention_bias=True)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    follow_published_limits(reference)
    generator = torch.Generator().manual_seed(2)
    for module in reference.modules():
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            if isinstance(projection := getattr(module, name, None), torch.nn.Linear):
                bias = torch.randn(projection.out_features, generator=generator)
                projection.bias = torch.nn.Parameter(bias, requires_grad=False)
    reference.save_pretrained(directory)
    config = load_model_config(directory)
    ours = HybridModel.load(config, directory, device=torch.device("cpu"), dtype=torch.float32)
    cache = poisoned_views(config, slabs=3, pages=16, page_size=16, dtype=torch.float32)
    tokens = torch.randint(0, 256, (80,), generator=generator).tolist()
    sequence = Sequence(tokens, slot=1, pages=list(range(1, 7)))
    driver = Driver(ours, cache, guard=False)
    got = [driver.step([Run(sequence, 70, logits="all")])]
    got += [driver.step([Run(sequence, 1, decode=True, logits="all")]) for _ in range(10)]
    torch.testing.assert_close(torch.cat(got), reference_logits(reference, tokens), rtol=0, atol=TOLERANCE)


def reference_logits(reference: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = reference(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def pieces_of_families() -> list[tuple[str, int | None]]:
    """Return every family with one size of pieces in turn, most of which end inside a chunk; or with all.

    Of the latest families, two models suffice for a run on two cores.
    """
    sizes = (100, None, 100, 64, 100, 256)
    left_out = () if LARGE else (*[*ZAMBA2][2:], *[*KIMI_LINEAR][2:])
    return [
        (name, piece)
        for number, name in enumerate(name for name in FAMILIES if name not in left_out)
        for piece in (dict.fromkeys(sizes) if LARGE else sizes[number % 6 :][:1])
    ]


OF_EACH_FAMILY = tuple(FAMILIES) if LARGE else (
    "two groups, all kinds of blocks", "experts in groups", "Granite, experts",
    "Bamba, half of each head turned",
    "Falcon-H1, every factor", "Qwen3-Next, experts and one dense layer",
    "Qwen3.5, tensors for each expert", "OLMo hybrid, rotary positions", "LFM2, experts",
    "Zamba2, two shared blocks", "Kimi-Linear, experts behind a dense layer",
    "Mamba2 alone, tied, float32 stream",
)  # fmt: skip


@pytest.fixture
def forced(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compute with one instruction set; `test_prefill_and_greedy_decode…` has what this CPU is best at."""
    with forced_instructions(request.param) as name:
        yield name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "forced"),
    [
        pytest.param(name, instructions, id=f"{readable(name)}-{instructions}")
        for name in OF_EACH_FAMILY
        for instructions in FEWER_INSTRUCTIONS
    ],
    indirect=True,
)
def test_families_say_the_same_on_processors_with_fewer_instructions(pair: Pair, forced: str) -> None:
    _, reference, directory = pair
    model = load(directory)
    assert model.backend.name == forced
    assert_logits_of_one_pass(model, reference, 100)


@pytest.mark.parametrize(
    ("pair", "piece"),
    [pytest.param(name, piece, id=f"{readable(name)}-{piece}") for name, piece in pieces_of_families()],
    indirect=["pair"],
)
def test_prefill_and_greedy_decode_give_the_logits_of_one_pass_over_the_text(
    pair: Pair, piece: int | None
) -> None:
    model, reference, _ = pair
    assert_logits_of_one_pass(model, reference, piece)


def assert_logits_of_one_pass(model: HybridModel, reference: Any, piece: int | None) -> None:
    """Compare ragged prompts, read in pieces of that many tokens or whole, and the tokens behind them."""
    cache = poisoned_views(model.config, slabs=8, pages=128, page_size=16, dtype=torch.float32)
    driver = Driver(model, cache, guard=False)
    generator = torch.Generator().manual_seed(7)
    sequences = [
        Sequence(
            torch.randint(0, 256, (length,), generator=generator).tolist(),
            slot=index + 1,
            pages=list(range(1 + 24 * index, 25 + 24 * index)),
        )
        for index, length in enumerate(PROMPTS)
    ]
    got: list[list[torch.Tensor]] = [[] for _ in sequences]
    # Short prompts start to decode while long ones still prefill: decodes and pieces share the steps.
    while any(sequence.computed < PROMPTS[i] + STEPS for i, sequence in enumerate(sequences)):
        runs, owners = [], []
        for index, sequence in enumerate(sequences):
            left = PROMPTS[index] - sequence.computed
            if left > 0:
                runs.append(Run(sequence, min(left, piece or left), logits="all"))
            elif sequence.computed < PROMPTS[index] + STEPS:
                runs.append(Run(sequence, 1, decode=True, logits="all"))
            else:
                continue
            owners.append(index)
        order = sorted(range(len(runs)), key=lambda i: not runs[i].decode)
        logits = driver.step(runs)
        parts = logits.split([runs[i].count for i in order])
        for i, part in zip(order, parts, strict=True):
            got[owners[i]].append(part)
            if runs[i].sequence.computed >= PROMPTS[owners[i]]:
                runs[i].sequence.tokens.append(int(part[-1].argmax()))
    for sequence, parts in zip(sequences, got, strict=True):
        ours = torch.cat(parts)
        expected = reference_logits(reference, sequence.tokens[: len(ours)])
        torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)
        greedy = expected.argmax(-1).tolist()
        prompt = len(sequence.tokens) - STEPS - 1
        assert sequence.tokens[prompt:] == greedy[prompt - 1 :]


@pytest.mark.parametrize(
    "pair", list(FAMILIES) if LARGE else OF_EACH_FAMILY[::3], indirect=True, ids=readable
)
def test_the_reference_tells_models_apart(pair: Pair) -> None:
    """The tolerance means something: one changed early token moves the last logits far beyond it."""
    _, reference, _ = pair
    tokens = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(8)).tolist()
    other = [*tokens[:5], (tokens[5] + 1) % 256, *tokens[6:]]
    difference = reference_logits(reference, tokens)[-1] - reference_logits(reference, other)[-1]
    assert difference.abs().max() > 10 * TOLERANCE
