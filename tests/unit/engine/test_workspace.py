"""Peak workspace of a step equals its plan: measured in torch's allocator, stage by stage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gate_cases import LARGE
from mamba_kernels.dispatch import backend
from mamba_planner.arithmetic import WeightsSize
from mamba_planner.memory import RUNTIME_BYTES
from mamba_server.engine import boot as booting
from mamba_server.engine import model_to_load
from mamba_server.engine.boot import NO_OVERRIDES, BootOverrides, Engine
from mamba_server.model.checkpoint.tensor_source import Fp8Form
from mamba_server.wire import AddRequest, SamplingParams
from mamba_settings.engine_settings import EngineSettings
from peak_memory import peak_bytes
from testmodels.adapters import write_adapter

pytestmark = pytest.mark.slow

CONFIG = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 128,
    "hybrid_override_pattern": "M*-",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 512,
    "ssm_state_size": 64,
    "mamba_num_heads": 16,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "chunk_size": 64,
    "conv_kernel": 4,
    "max_position_embeddings": 2048,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "mlp_hidden_act": "relu2",
    "torch_dtype": "float32",
    "eos_token_id": 2,
}


class AnyWeights:
    """Weights without files."""

    def has(self, name: str) -> bool:
        return False

    def rows(self, name: str) -> int:
        return 0

    def numbers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        return None

    def four_bits(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        return None

    @property
    def fp8_form(self) -> Fp8Form:
        return ""

    def fp8(self, name: str, shape: tuple[int, ...]) -> None:
        return None

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.full(shape, 0.01, dtype=dtype, device=device)

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        pass


class Measured:
    """An engine without a file of weights, and what its steps take."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any],
        trial: BootOverrides = NO_OVERRIDES, **settings: Any,
    ) -> None:  # fmt: skip
        whole = config if "model_type" in config else CONFIG | config
        (directory / "config.json").write_text(json.dumps(whole))
        monkeypatch.setattr(model_to_load, "weights_size", lambda _, **options: WeightsSize(0, 0, 0))
        # What was planned holds for torch, too. The kernels in C++ hold less, which torch does not see.
        monkeypatch.setattr(backend, "library", lambda: None)
        # Results of so many threads, or of one: what is held does not depend on it.
        torch.set_num_threads(1)
        wanted = {"arena_bytes": 128 << 20, "chunked_prefill_tokens": 512, **settings}
        self.engine: Engine = booting.boot(
            EngineSettings(model=str(directory), device="cpu", **wanted),
            lambda *_: None,
            replace(trial, weights=AnyWeights()),
        )
        # How many start together must not hang on how fast this machine is just now.
        self.engine.core.scheduler.admission.budget = None
        ledger = {line.item: line.bytes for line in self.engine.plan.ledger}
        self.planned = ledger["workspace"] - RUNTIME_BYTES["cpu"]

    def add(self, *lengths: int, **params: Any) -> None:
        for number, length in enumerate(lengths):
            tokens = [3 + (7 * at + number) % 900 for at in range(length)]
            wanted = SamplingParams(max_tokens=8, ignore_eos=True, **{"temperature": 0.0, **params})
            adapter = self.engine.adapters[0].fingerprint if self.engine.adapters else ""
            refused = self.engine.core.add(AddRequest(f"r{number}", tokens, wanted, adapter=adapter))
            assert refused is None, refused

    def step(self) -> int:
        taken = peak_bytes(self.engine.core.step)
        assert not self.engine.core.last_error
        return taken


PACKED_FROM = 64
"""Queries and keys from which torch packs keys and values for a matrix unit."""
PACKED_POSITIONS = 512
"""Keys that are packed together; the last ones are padded."""


@pytest.fixture(autouse=True)
def matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every processor the plan of one with AMX.

    There torch's attention copies 16-bit keys and values once for each query head.
    """
    attend = F.scaled_dot_product_attention

    def packing(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any, **named: Any) -> Any:
        if query.element_size() != 2 or min(query.shape[-2], key.shape[-2]) < PACKED_FROM:
            return attend(query, key, value, *more, **named)
        positions = -(-key.shape[-2] // PACKED_POSITIONS) * PACKED_POSITIONS
        packed = [query.new_empty(*query.shape[:2], positions, query.shape[-1]) for _ in range(2)]
        attended = attend(query, key, value, *more, **named)
        del packed
        return attended

    monkeypatch.setattr(F, "scaled_dot_product_attention", packing)


FAT = {"hybrid_override_pattern": "M", "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 64}
WIDE = {"hybrid_override_pattern": "M", "vocab_size": 65_536}
ALL_OF_SAMPLING = {
    "temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "presence_penalty": 0.1, "logprobs": 5,
}  # fmt: skip


TYPES = ("float32", "bfloat16")
NAMES = ("config", "settings", "lengths", "params", "steps")
STEPS = [
    pytest.param({}, {}, [511], {}, 1, id="one long prompt"),
    pytest.param({}, {}, [17] * 30, {}, 1, id="many short prompts"),
    pytest.param(FAT, {}, [17] * 30, {}, 1, id="many short prompts with large states"),
    pytest.param(FAT, {"state_dtype": "float16"}, [3] * 32, {}, 2, id="decodes of 16-bit states"),
    pytest.param(WIDE, {}, [3] * 32, ALL_OF_SAMPLING, 2, id="everything that sampling can do"),
    pytest.param(WIDE, {}, [300], {"prompt_logprobs": 5}, 1, id="scores of a prompt"),
    pytest.param({"hybrid_override_pattern": "*"}, {}, [1500], {}, 3, id="attention to a long context"),
]


@pytest.mark.parametrize(
    ("dtype", *NAMES),
    [
        pytest.param(dtype, *step.values, id=f"{step.id}, {dtype}")
        for number, step in enumerate(STEPS)
        for dtype in (TYPES if LARGE else TYPES[number % 2 :][:1])
    ],
)
def test_no_step_takes_more_than_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, config: dict[str, Any],
    settings: dict[str, Any], lengths: list[int], params: dict[str, Any], steps: int,
) -> None:  # fmt: skip
    measured = Measured(tmp_path, monkeypatch, config, dtype=dtype, **settings)
    measured.add(*lengths, **params)
    taken = max(measured.step() for _ in range(steps))
    assert measured.planned / 40 < taken <= measured.planned


COMMON = {
    "vocab_size": 1000, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    "torch_dtype": "float32", "eos_token_id": 2,
}  # fmt: skip
MIXER = {
    "mamba_n_heads": 16, "mamba_d_head": 16, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_d_conv": 4,
}  # fmt: skip
GRANITE = COMMON | MIXER | {
    "model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"], "attention_multiplier": 0.1,
    "shared_intermediate_size": 512, "num_local_experts": 0,
}  # fmt: skip
QWEN3_NEXT = COMMON | {
    "model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"], "head_dim": 64,
    "num_experts": 0, "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_value_head_dim": 64,
    "linear_key_head_dim": 64, "linear_conv_kernel_dim": 4,
}  # fmt: skip
ZAMBA2 = COMMON | {
    "model_type": "zamba2", "layers_block_type": ["hybrid", "mamba"], "n_mamba_heads": 16,
    "mamba_d_state": 64, "mamba_d_conv": 4, "adapter_rank": 32, "num_mem_blocks": 1,
}  # fmt: skip
KIMI_LINEAR = {
    "model_type": "kimi_linear", "layer_types": ["linear_attention", "full_attention"],
    "num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"], "num_key_value_heads": 4,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "linear_num_heads": 8, "linear_head_dim": 64, "num_local_experts": 16, "routed_scaling_factor": 1.0,
}  # fmt: skip
OF_EXPERTS = {"num_experts_per_tok": 6, "moe_intermediate_size": 192}
FAMILIES: dict[str, dict[str, Any]] = {
    "Granite": GRANITE,
    "Granite with experts": GRANITE | {
        "num_local_experts": 16, "num_experts_per_tok": 6, "intermediate_size": 192,
    },
    "experts alone": CONFIG | OF_EXPERTS | {
        "hybrid_override_pattern": "E", "n_routed_experts": 16, "moe_shared_expert_intermediate_size": 384,
    },
    "Nemotron 3 Nano": CONFIG | OF_EXPERTS | {
        "hybrid_override_pattern": "ME*", "n_routed_experts": 16, "moe_shared_expert_intermediate_size": 384,
    },
    "experts of a latent width": CONFIG | OF_EXPERTS | {
        "hybrid_override_pattern": "E", "n_routed_experts": 16, "moe_shared_expert_intermediate_size": 384,
        "moe_latent_size": 64,
    },
    "Falcon-H1": COMMON | MIXER | {
        "model_type": "falcon_h1", "num_hidden_layers": 2, "head_dim": 32, "mamba_d_ssm": 256,
        "mamba_rms_norm": True, "mamba_norm_before_gate": False,
    },
    "Bamba": COMMON | MIXER | {"model_type": "bamba", "num_hidden_layers": 2, "attn_layer_indices": [1]},
    "rotated attention alone": COMMON | MIXER | {
        "model_type": "bamba", "num_hidden_layers": 1, "attn_layer_indices": [0], "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 64, "intermediate_size": 16,
    },
    "Qwen3-Next": QWEN3_NEXT | {"num_experts": 16, "shared_expert_intermediate_size": 96, **OF_EXPERTS},
    "the delta rule alone": QWEN3_NEXT | {"layer_types": ["linear_attention"], "intermediate_size": 16},
    "OLMo hybrid": {
        key: value for key, value in QWEN3_NEXT.items() if key != "head_dim"
    } | {"model_type": "olmo_hybrid"},
    "LFM2": COMMON | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "conv_bias": True},
    "short convolutions alone": COMMON | {
        "model_type": "lfm2", "layer_types": ["conv"], "intermediate_size": 16, "block_multiple_of": 16,
    },
    "LFM2 with experts": COMMON | OF_EXPERTS | {
        "model_type": "lfm2_moe", "layer_types": ["conv", "full_attention"], "num_experts": 16,
        "num_dense_layers": 0,
    },
    "gated attention alone": QWEN3_NEXT | {
        "layer_types": ["full_attention"], "num_attention_heads": 16, "num_key_value_heads": 16,
        "intermediate_size": 16,
    },
    "Kimi-Linear": COMMON | OF_EXPERTS | KIMI_LINEAR,
    "Zamba2": ZAMBA2,
    "shared blocks whose attention changes": ZAMBA2 | {
        "use_shared_attention_adapter": True, "num_key_value_heads": 4, "intermediate_size": 16,
    },
    "Mamba2": COMMON | {
        "model_type": "mamba2", "num_hidden_layers": 1, "num_heads": 16, "head_dim": 16, "n_groups": 1,
        "state_size": 64, "conv_kernel": 4,
    },
}  # fmt: skip


PROMPTS = (([511], 1), ([17] * 30, 1))
DECODES = (([3] * 32, 2), ([1500], 3))
"""Lengths of prompts that begin together, and the steps that are looked at."""


@pytest.mark.parametrize(
    ("family", "dtype", "loads"),
    [
        pytest.param(family, TYPES[1 - n % 2], loads, id=f"{family}, {TYPES[1 - n % 2]}")
        for n, family in enumerate(FAMILIES)
        for loads in [(*PROMPTS, *DECODES) if LARGE else (PROMPTS[n % 2], DECODES[n // 2 % 2])]
    ],
)
def test_no_step_of_any_family_takes_more_than_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, dtype: str,
    loads: tuple[tuple[list[int], int], ...],
) -> None:  # fmt: skip
    most = 0.0
    for lengths, steps in loads:
        measured = Measured(tmp_path, monkeypatch, FAMILIES[family], dtype=dtype)
        measured.add(*lengths)
        taken = max(measured.step() for _ in range(steps))
        assert taken <= measured.planned, lengths
        most = max(most, taken / measured.planned)
    assert most > 1 / 40


LATENT = COMMON | KIMI_LINEAR | {"layer_types": ["full_attention"], "num_hidden_layers": 1,
                                 "mlp_layer_types": ["dense"], "intermediate_size": 16}  # fmt: skip
SHARED = "model.layers.0.shared_transformer"
ADAPTED: dict[str, tuple[dict[str, Any], dict[str, tuple[int, int]]]] = {
    "heads with a latent": (
        LATENT,
        {"model.layers.0.self_attn.kv_b_proj": (256, 64), "model.layers.0.self_attn.q_proj": (192, 128)},
    ),
    "shared blocks": (
        ZAMBA2,
        {f"{SHARED}.self_attn.q_proj": (256, 256), f"{SHARED}.feed_forward.gate_up_proj": (1024, 128)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("model", ADAPTED)
def test_no_step_with_adapters_takes_more_than_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, dtype: str
) -> None:
    config, shapes = ADAPTED[model]
    adapter = write_adapter(tmp_path / "adapter", shapes, rank=32)
    most = 0.0
    for lengths, steps in (*PROMPTS, *DECODES) if LARGE else (PROMPTS[0], DECODES[0]):
        more = {"lora": (f"a={adapter}",), "max_lora_rank": 32}
        measured = Measured(tmp_path, monkeypatch, config, dtype=dtype, **more)
        measured.add(*lengths)
        taken = max(measured.step() for _ in range(steps))
        assert taken <= measured.planned, lengths
        most = max(most, taken / measured.planned)
    assert most > 1 / 40


@pytest.mark.parametrize(NAMES, STEPS if LARGE else STEPS[1::3])
def test_no_step_takes_more_than_the_trial_did_and_the_arena_is_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], settings: dict[str, Any],
    lengths: list[int], params: dict[str, Any], steps: int,
) -> None:  # fmt: skip
    fixed = {"arena_bytes": None, "device_memory": "512Mi", **settings}
    by_arithmetic = Measured(tmp_path, monkeypatch, config, **fixed)
    measured = Measured(tmp_path, monkeypatch, config, BootOverrides(measure=peak_bytes), **fixed)
    measured.add(*lengths, **params)
    taken = max(measured.step() for _ in range(steps))
    assert taken <= measured.planned <= 1.05 * by_arithmetic.planned
    more = measured.engine.plan.arena_bytes - by_arithmetic.engine.plan.arena_bytes
    spared = by_arithmetic.planned - measured.planned
    assert spared - measured.engine.plan.slab_bytes < more < spared + measured.engine.plan.slab_bytes


@pytest.mark.parametrize(("one", "two"), [(100, 400)])
def test_the_scores_of_a_long_prompt_take_no_more_than_those_of_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: int, two: int
) -> None:
    def taken(length: int) -> int:
        measured = Measured(tmp_path, monkeypatch, WIDE)
        measured.add(length, prompt_logprobs=5)
        return measured.step()

    assert taken(two) < 1.5 * taken(one)
