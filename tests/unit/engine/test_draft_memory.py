"""Memory for drafts: the plan counts what the engine takes, and it is small beside the states."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from safetensors.torch import load_file

import mamba_server
from engines import make_engine, run
from mamba_planner.arithmetic import DTYPE_BYTES, mixer_inputs, state_bytes
from mamba_planner.draft_heads import head_bytes, with_heads
from mamba_planner.engine_plan import plan_engine
from mamba_planner.errors import UnusableInput
from mamba_planner.families.registry import load_model_config, model_config_from_hf
from mamba_planner.memory import Device
from mamba_planner.memory_plan import LedgerLine, MemoryPlan
from mamba_planner.planner import DRAFT_MODEL
from mamba_planner.workspace import draft_bytes
from mamba_server.engine import draft_model
from mamba_server.model.checkpoint.weight_files import weights_size
from mamba_server.wire import AddRequest, SamplingParams
from mamba_settings.engine_settings import EngineSettings
from testmodels.checkpoints import add_draft_head, random_kimi_linear, random_nemotron_h, random_qwen3_next

PUBLISHED = Path(__file__).parents[3] / "libs/mamba_planner/published"


@pytest.mark.parametrize("write", [random_nemotron_h, random_qwen3_next])
def test_the_plan_counts_the_memory_of_drafts_that_the_engine_takes(write: object, tmp_path: Path) -> None:
    model = write(tmp_path / "model")  # type: ignore[operator]
    engine = make_engine(
        model, speculation="ngram", speculative_tokens=3, max_running_requests=4, dtype="float32",
        state_dtype="float32",
    )  # fmt: skip
    memory = engine.core._runner._cache.replay
    tensors = [*memory.ring, memory.conv, memory.ssm]

    counted = draft_bytes(load_model_config(model), "float32", drafts=3, running=4)
    # A row of each drafted token in the counts for penalties: 4 bytes for the answer, 1 for the prompt.
    counts = 4 * 3 * engine.model.vocab_size * (4 + 1)
    assert sum(tensor.nbytes for tensor in tensors) + counts == counted
    assert engine.core.cache.batch.free_lanes == 4
    with_drafts, without = (
        plan_engine(
            load_model_config(model),
            EngineSettings(
                model=str(model),
                dtype="float32",
                max_running_requests=4,
                speculative_tokens=3,
                speculation=drafts,
            ),
            Device("cpu", 8 << 30),
        )
        for drafts in ("ngram", "off")
    )
    assert without.arena_bytes - with_drafts.arena_bytes == pytest.approx(counted, abs=without.slab_bytes)


@pytest.mark.parametrize(
    ("device", "more", "same"),
    [
        ("cpu", {}, "auto"),
        ("cpu", {"batch_invariant": True}, "off"),
        ("cpu", {"state_replay": "4"}, "off"),
        ("cuda", {}, "off"),
    ],
)
def test_without_a_value_a_cpu_drafts_where_nothing_excludes_it_and_a_gpu_does_not(
    device: Literal["cpu", "cuda"], more: dict[str, Any], same: str, tmp_path: Path
) -> None:
    model = add_draft_head(random_nemotron_h(tmp_path / "model"))
    plans = [
        plan_engine(
            load_model_config(model),
            EngineSettings(model=str(model), **more, **drafts),
            Device(device, 8 << 30),
        )
        for drafts in ({}, {"speculation": same})
    ]
    assert plans[0] == plans[1]
    if device == "cpu":
        engine = make_engine(model, speculation=None, max_running_requests=4, **more)
        assert (engine.core.speculation is not None) == (same == "auto")
        # Pages have the layer of the head where it drafts.
        assert engine.plan.page_bytes == plans[0].page_bytes


@pytest.mark.parametrize("write", [random_qwen3_next, random_nemotron_h])
def test_the_plan_counts_the_head_its_layer_of_pages_and_its_memory_to_the_byte(
    write: object, tmp_path: Path
) -> None:
    model = add_draft_head(write(tmp_path / "model"))  # type: ignore[operator]
    sizes = {"dtype": "float32", "state_dtype": "float32", "max_running_requests": 4, "page_size": 8}
    engine = make_engine(model, speculation="mtp", speculative_tokens=3, **sizes)
    plain = make_engine(model, **sizes)
    views, config = engine.core._runner._cache, load_model_config(model)
    tensors = [*views.replay.ring, views.replay.conv, views.replay.ssm, views.hidden.kept]

    with_head = with_heads(config, "mtp")
    counted = draft_bytes(with_head, "float32", drafts=3, running=4)
    counts = 4 * 3 * config.vocab_size * (4 + 1)
    assert sum(tensor.nbytes for tensor in tensors) + counts == counted
    of_layer = 2 * 8 * config.attention.kv_heads * config.attention.head_dim * 4
    assert engine.plan.page_bytes == plain.plan.page_bytes + of_layer + config.hidden_size * 4
    page = [*(view[1] for view in views.kv), views.tails[1]]
    assert sum(part.numel() * 4 for part in page) == engine.plan.page_bytes
    share = 1 - plain.plan.page_bytes / engine.plan.page_bytes
    assert [f"{share:.0%} of each page" in note for note in engine.plan.notes].count(True) == 1
    assert engine.state_layout.page_bytes == engine.plan.page_bytes
    # All of a page belongs to it alone: its parts lie one after another.
    starts = [part.data_ptr() for part in page]
    assert [end - start for start, end in pairwise(starts)] == [of_layer] * (len(page) - 1)
    assert views.kv[0][2].data_ptr() - starts[0] == engine.plan.page_bytes
    head = {name: tensor for name, tensor in load_file(model / "model.safetensors").items() if "mtp." in name}
    assert engine.plan.weights_bytes - plain.plan.weights_bytes == sum(each.nbytes for each in head.values())
    # Whoever plans by the sizes of files alone comes to the same plan as the engine.
    size = weights_size(model)
    assert size is not None
    settings = EngineSettings(model=str(model), speculation="mtp", speculative_tokens=3, **sizes)
    planned = plan_engine(config, settings, Device("cpu", 8 << 30), size.loaded(config, "float32"))
    assert planned.weights_bytes == engine.plan.weights_bytes
    for quantization, bytes_of_64 in (("int8", 2 * 34), ("int4", 2 * 18)):
        quantized = head_bytes(config, settings.model_copy(update={"quantization": quantization}))
        matrices = sum(each.numel() for each in head.values() if each.dim() > 1)
        norms = sum(each.nbytes for each in head.values() if each.dim() == 1)
        assert quantized == -(-matrices * bytes_of_64 // 64) + norms
    # Each output has a scale of four bytes; routers are not rounded, and have the type of the weights.
    rounded = {
        name: each for name, each in head.items() if each.dim() > 1 and not name.endswith("gate.weight")
    }
    scales = sum(4 * each.shape[0] for each in rounded.values())
    elements = sum(each.numel() for each in rounded.values())
    fp8 = head_bytes(config, settings.model_copy(update={"quantization": "fp8"}))
    others = sum(each.nbytes for name, each in head.items() if name not in rounded)
    assert fp8 == pytest.approx(elements + scales + others, rel=0.02)
    assert with_head.parameters - config.parameters == sum(each.numel() for each in head.values())


@pytest.mark.parametrize(
    ("write", "fields"),
    [
        pytest.param(random_nemotron_h, {"hybrid_override_pattern": "M-M*-M"}, id="M-M*-M"),
        pytest.param(random_nemotron_h, {"hybrid_override_pattern": "*-*-"}, id="*-*-"),
        pytest.param(random_kimi_linear, {}, id="one row for key and value"),
    ],
)
def test_the_plan_counts_a_draft_model_with_its_states_and_pages_to_the_byte(
    write: Any, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_nemotron_h(tmp_path / "model")
    draft = write(tmp_path / "draft", seed=3, **fields)
    views = []
    allocate = draft_model.draft_model_views
    monkeypatch.setattr(
        draft_model, "draft_model_views", lambda *a, **k: views.append(allocate(*a, **k)) or views[0]
    )
    sizes = {"dtype": "float32", "max_running_requests": 3, "page_size": 8, "max_model_len": 256}
    engine = make_engine(model, speculation=f"draft={draft}", speculative_tokens=3, **sizes)

    tensors = [*views[0].conv, *views[0].ssm, *views[0].kv]
    weights = sum(tensor.nbytes for tensor in load_file(draft / "model.safetensors").values())
    tables = (3 + 1) * (256 // 8 + 1) * 4
    counted = sum(tensor.untyped_storage().nbytes() for tensor in tensors) + weights + tables
    assert engine.plan.draft_model_bytes == counted
    assert LedgerLine(DRAFT_MODEL, counted) in engine.plan.ledger
    # The device keeps its room free: the arena of the same memory is smaller by as much.
    config, settings = engine.model, EngineSettings(model="m", **sizes)
    plans = [
        plan_engine(replace(config, draft_model=each), more, Device("cpu", 8 << 30))
        for each, more in (
            (config.draft_model, settings.model_copy(update={"speculation": f"draft={draft}"})),
            (None, settings.model_copy(update={"speculation": "ngram"})),
        )
    ]
    assert plans[1].arena_bytes - plans[0].arena_bytes == pytest.approx(counted, abs=plans[0].slab_bytes)


def test_a_plan_does_not_leave_out_a_draft_model_that_it_does_not_know() -> None:
    config = model_config_from_hf(json.loads((PUBLISHED / "nemotron-h-8b.json").read_text()))
    settings = EngineSettings(model="m", speculation="draft=hf://a/b")
    with pytest.raises(UnusableInput, match="draft=hf://a/b: the memory cannot be planned"):
        plan_engine(config, settings, Device("cuda", 80 << 30))


# The windows of LFM2 are smaller than the inputs of a token, and both are small beside everything else.
@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PUBLISHED.glob("*.json")) if not path.stem.startswith("lfm2")],
    ids=lambda path: path.stem,
)
def test_the_inputs_of_a_token_are_a_small_part_of_a_state(path: Path) -> None:
    config = model_config_from_hf(json.loads(path.read_text()))
    inputs = config.recurrent_layers * mixer_inputs(config) * DTYPE_BYTES["bfloat16"]
    states = state_bytes(config, "float32", "bfloat16")

    assert 0 < inputs <= 0.1 * (states.conv + states.ssm)


def test_without_speculation_nothing_is_reserved() -> None:
    config = model_config_from_hf(json.loads((PUBLISHED / "nemotron-h-8b.json").read_text()))

    assert draft_bytes(config, "bfloat16", drafts=0, running=32) == 0


TINY_RECALL = Path(mamba_server.__file__ or "").parent / "builtin/tiny-recall"


def test_auto_plans_with_the_head_that_the_configuration_names_as_the_engine_does() -> None:
    config, sizes = load_model_config(TINY_RECALL), {"dtype": "float32", "max_running_requests": 4}
    engine = make_engine(TINY_RECALL, speculation="auto", **sizes)

    def planned(speculation: str, device: Literal["cpu", "cuda"], **more: Any) -> MemoryPlan:
        settings = EngineSettings(
            model="m", speculation=speculation, arena_bytes=64 << 20, overlap=True, **sizes, **more
        )
        size = weights_size(TINY_RECALL)
        assert size is not None
        return plan_engine(config, settings, Device(device, 8 << 30), size.loaded(config, "float32"))

    assert engine.core._runner._model.draft_head is not None
    auto, mtp, ngram = (planned(kind, "cpu") for kind in ("auto", "mtp", "ngram"))
    assert (auto.page_bytes, auto.weights_bytes) == (engine.plan.page_bytes, engine.plan.weights_bytes)
    assert (auto.page_bytes, auto.weights_bytes) == (mtp.page_bytes, mtp.weights_bytes)
    assert auto.page_bytes > ngram.page_bytes
    # Nowhere else is a head measured to pay, and it has no adapters.
    assert planned("auto", "cuda").page_bytes == ngram.page_bytes
    assert planned("auto", "cpu", max_loras=1, max_lora_rank=4).page_bytes == ngram.page_bytes
    # A layer more would travel with each state of a pool.
    assert planned("auto", "cpu", role="decode", transfer_port=0).page_bytes == ngram.page_bytes


def test_auto_serves_a_copy_that_leaves_out_the_head_that_its_configuration_names(tmp_path: Path) -> None:
    model = random_nemotron_h(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    engine = make_engine(model, speculation="auto")

    assert engine.core._runner._model.draft_head is None
    assert engine.plan.page_bytes == make_engine(model).plan.page_bytes


def test_auto_serves_without_the_head_where_there_is_no_memory_for_it() -> None:
    small = {"arena_bytes": 2500 << 10, "max_running_requests": 4}
    engine, plain = (make_engine(TINY_RECALL, speculation=drafts, **small) for drafts in ("auto", "off"))

    assert engine.core._runner._model.draft_head is None
    assert (engine.plan.pages, engine.plan.weights_bytes) == (plain.plan.pages, plain.plan.weights_bytes)
    request = AddRequest("a", [5, 6, 7, 8] * 6, SamplingParams(max_tokens=24, temperature=0.0))
    assert run(engine, [request])["a", 0].tokens == run(plain, [request])["a", 0].tokens
