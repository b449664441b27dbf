"""Choices of the planner: which strategy, why, what is refused, and that the ledger is whole."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mamba_api.choices import Strategy
from mamba_api.v1alpha1 import PlanStatus
from mamba_planner import (
    Constraints,
    Device,
    InsufficientMemory,
    MemoryPlan,
    UnusableInput,
    Workload,
    plan,
    plan_engine,
)
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import reservation
from mamba_settings.engine_settings import EngineSettings

GIB = 1 << 30
CARD = Device("cuda", 80 * GIB)
CHAT = Workload(4000, 500, 0.5, 64, declared=True)
SHIPPED = Path(__file__).parents[3] / "server/mamba_server/builtin/tiny-recall"
CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def model(name: str) -> ModelConfig:
    return model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


NANO = model("nemotron-nano-9b-v2")


def reasons(result: MemoryPlan) -> dict[tuple[str, str], str]:
    return {(each.strategy, each.state_dtype): each.reason for each in result.rejected}


@pytest.mark.parametrize(
    ("strategy", "overlap", "slots"),
    [
        ("NoBuffer", True, 1), ("NoBuffer", False, 1), ("ExtraBufferLazy", True, 2),
        ("ExtraBufferLazy", False, 2), ("ExtraBuffer", True, 3), ("ExtraBuffer", False, 2),
    ],
)  # fmt: skip
def test_each_strategy_reserves_its_slots(strategy: Strategy, overlap: bool, slots: int) -> None:
    assert reservation(strategy, overlap=overlap).slots_per_sequence == slots


def test_chat_on_a_large_card_gets_checkpoints_while_decoding_in_full_precision() -> None:
    result = plan(NANO, Constraints(), CARD, workload=CHAT)
    assert (result.strategy, result.state_dtype) == ("ExtraBufferLazy", "float32")
    assert result.max_running_requests >= 64 == result.planned_running
    assert result.binding_constraint == "state slots"


def test_all_five_other_choices_keep_their_reason_with_numbers() -> None:
    result = plan(NANO, Constraints(), CARD, workload=CHAT)
    assert len(result.rejected) == 5
    assert len(reasons(result)) == 5
    for reason in reasons(result).values():
        assert any(letter.isdigit() for letter in reason)


def test_a_demand_exact_states_cannot_meet_brings_16_bit_states() -> None:
    result = plan(NANO, Constraints(), CARD, workload=replace(CHAT, concurrency=300))
    assert result.state_dtype == "float16"
    assert result.max_running_requests >= 300
    assert "float32" in result.reason
    assert "300" in reasons(result)["NoBuffer", "float32"]


def test_16_bit_states_are_not_taken_for_speed_alone() -> None:
    result = plan(NANO, Constraints(), CARD, workload=CHAT)
    assert "16 bits" in reasons(result)["ExtraBuffer", "float16"]


def test_the_checkpoints_own_wish_for_exact_states_is_kept() -> None:
    hinted = replace(NANO, state_dtype_hint="float32")
    result = plan(hinted, Constraints(), CARD, workload=replace(CHAT, concurrency=300))
    assert result.state_dtype == "float32"
    assert "float32" in reasons(result)["NoBuffer", "float16"]
    assert "300" in result.reason


def test_asking_for_16_bit_states_overrules_the_checkpoints_wish() -> None:
    hinted = replace(NANO, state_dtype_hint="float32")
    assert plan(hinted, Constraints(state_dtype="float16"), CARD).state_dtype == "float16"


@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBufferLazy", "ExtraBuffer"])
def test_a_strategy_that_is_asked_for_is_taken_and_the_others_say_so(strategy: Strategy) -> None:
    result = plan(NANO, Constraints(strategy=strategy), CARD, workload=CHAT)
    assert result.strategy == strategy
    assert f"the configuration asks for strategy {strategy}" in result.reason
    others = [reason for (name, _), reason in reasons(result).items() if name != strategy]
    assert len(others) == 4
    assert all(f"asks for strategy {strategy}" in reason for reason in others)


def test_without_prefix_caching_no_slot_is_spent_on_checkpoints() -> None:
    result = plan(NANO, Constraints(prefix_caching=False), CARD, workload=CHAT)
    assert result.strategy == "NoBuffer"
    assert (result.checkpoints, result.expected_saved) == (0, 0.0)
    assert "prefix caching is off" in result.reason


@pytest.mark.parametrize("name", ["granite-4.0-h-small", "nemotron-3-nano-30b-a3b"])
def test_a_choice_that_resumes_nothing_says_why_and_what_would_leave_room(name: str) -> None:
    crowded = plan(model(name), Constraints(), CARD)
    assert crowded.checkpoints == 0
    assert (
        f"with {crowded.planned_running} running there is no room for reusable checkpoints" in crowded.reason
    )
    half = crowded.planned_running // 2
    asked = plan(model(name), Constraints(max_running_requests=half, strategy="NoBuffer"), CARD)
    assert f"{half} at once would leave room for {asked.checkpoints} and resume" in crowded.reason
    assert f"set maxRunningRequests {half} to keep that room" in crowded.reason
    assert f"{asked.expected_saved:.0%} of prompt tokens" in crowded.reason
    assert asked.checkpoints >= half


def test_a_declared_concurrency_that_fills_the_memory_says_so() -> None:
    full = plan(
        NANO, Constraints(strategy="NoBuffer"), CARD, workload=Workload(concurrency=314, declared=True)
    )
    assert (full.planned_running, full.checkpoints) == (314, 0)
    assert "314" in full.reason


def test_a_small_card_gives_up_tracking_slots_for_concurrency() -> None:
    small = plan(NANO, Constraints(), Device("cuda", 32 * GIB), workload=replace(CHAT, concurrency=40))
    assert small.strategy in ("NoBuffer", "ExtraBufferLazy")
    assert small.max_running_requests >= 40


def test_weights_and_one_sequence_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(InsufficientMemory) as caught:
        plan(NANO, Constraints(max_model_len=131_072), Device("cuda", 22 * GIB))
    message = str(caught.value)
    assert "weights 16.6Gi" in message
    assert "131072 tokens" in message
    assert "budget is 19.8Gi" in message
    assert caught.value.need > caught.value.have


def test_the_models_own_limit_is_lowered_to_what_fits_and_said() -> None:
    result = plan(NANO, Constraints(), Device("cuda", 22 * GIB))
    assert result.max_model_len < 131_072
    assert any(f"lowered to {result.max_model_len:,}" in note for note in result.notes)


def test_a_length_that_was_asked_for_is_never_lowered() -> None:
    result = plan(NANO, Constraints(max_model_len=65_536), CARD)
    assert result.max_model_len == 65_536


def test_a_length_at_which_cached_keys_would_be_wrong_is_refused() -> None:
    """Dynamic positions of all tokens change once a text is longer than those of the training."""
    config = json.loads((CONFIGS / "bamba-9b.json").read_text())
    scaled = model_config_from_hf({**config, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})
    limit = scaled.max_position
    assert plan(scaled, Constraints(max_model_len=limit), CARD).max_model_len == limit
    with pytest.raises(UnusableInput, match=f"at most {limit:,}"):
        plan(scaled, Constraints(max_model_len=limit + 1), CARD)


def test_a_long_context_is_bound_by_pages() -> None:
    result = plan(NANO, Constraints(), CARD, workload=Workload(100_000, 1000, 0.2, 4, declared=True))
    assert result.binding_constraint == "kv pages"


def test_a_configured_limit_that_binds_is_named() -> None:
    result = plan(NANO, Constraints(max_running_requests=8), CARD, workload=CHAT)
    assert result.max_running_requests == 8
    assert result.binding_constraint == "configured limit"


def test_a_limit_that_nobody_configured_is_not_said_to_be_configured() -> None:
    result = plan(NANO, Constraints(max_model_len=256), Device("cpu", 90 * GIB), workload=CHAT)
    assert result.max_running_requests == 32
    assert result.binding_constraint == "default limit"


def test_a_single_sequence_is_bound_by_memory() -> None:
    result = plan(NANO, Constraints(max_model_len=4096), Device("cuda", int(21 * GIB)))
    assert result.max_running_requests == 1
    assert result.binding_constraint == "memory"


def test_a_pure_recurrent_model_has_slots_only() -> None:
    result = plan(model("mamba2-2.7b"), Constraints(), Device("cuda", 24 * GIB))
    assert (result.pages, result.page_bytes, result.pages_per_slab) == (0, 0, 0)
    assert result.slots == result.slabs - 1
    assert result.binding_constraint == "state slots"
    assert result.max_model_len == 1 << 20


def test_headroom_is_what_neither_weights_nor_padding_nor_running_sequences_take() -> None:
    result = plan(NANO, Constraints(), CARD, workload=CHAT)
    lines = {line.item: line.bytes for line in result.ledger}
    assert lines["padding slab"] == result.slab_bytes
    slots = result.planned_running * result.slots_per_sequence
    assert lines["slots of running sequences"] == slots * result.slab_bytes
    cached = lines["slots of checkpoints"] + lines["pages of checkpoints"]
    assert result.headroom_bytes == cached + lines["free slabs"] + lines["left outside the arena"]


def test_slots_pages_and_padding_are_the_whole_arena() -> None:
    result = plan(NANO, Constraints(), CARD, workload=CHAT)
    assert result.pages % result.pages_per_slab == 0
    assert 1 + result.slots + result.pages // result.pages_per_slab == result.slabs


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS.glob("*.json")])
def test_every_known_model_is_planned_and_its_ledger_is_whole(name: str) -> None:
    result = plan(model(name), Constraints(tensor_parallel=1), Device("cuda", 288 * GIB), workload=CHAT)
    assert sum(line.bytes for line in result.ledger) == result.budget_bytes == int(288 * GIB * 0.9)
    assert all(line.bytes >= 0 for line in result.ledger)
    assert result.arena_bytes == result.slabs * result.slab_bytes


def test_tensor_parallelism_plans_one_devices_share() -> None:
    one, two = (plan(NANO, Constraints(tensor_parallel=ways), CARD, workload=CHAT) for ways in (1, 2))
    assert two.state_bytes * 2 == one.state_bytes
    assert two.kv_bytes_per_token * 2 == one.kv_bytes_per_token
    assert two.max_running_requests > one.max_running_requests


def test_tensor_parallelism_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UnusableInput, match="tensorParallel 3"):
        plan(NANO, Constraints(tensor_parallel=3), CARD)


def test_true_weight_bytes_change_the_arena_one_to_one() -> None:
    light, heavy = (plan(NANO, Constraints(), CARD, weights_bytes=size * GIB) for size in (10, 20))
    assert light.arena_bytes - heavy.arena_bytes == pytest.approx(10 * GIB, abs=light.slab_bytes)


def test_an_explicit_arena_is_cut_into_whole_slabs() -> None:
    result = plan(NANO, Constraints(arena_bytes=10 * GIB), Device("cuda", 0))
    assert result.slabs == 10 * GIB // result.slab_bytes
    assert result.arena_bytes <= 10 * GIB
    assert sum(line.bytes for line in result.ledger) == result.budget_bytes


def test_a_cpu_arena_takes_a_quarter_of_what_is_free_and_says_so_unless_told() -> None:
    small = model("granite-4.0-h-350m")
    measured = plan(small, Constraints(), Device("cpu", 16 * GIB, declared=False))
    told = plan(small, Constraints(), Device("cpu", 16 * GIB))
    left = measured.budget_bytes - measured.ledger[0].bytes - measured.ledger[1].bytes
    assert left // 5 < measured.arena_bytes <= left // 4 < told.arena_bytes
    assert any("arena limited to" in note and "a quarter" in note for note in measured.notes)


def test_a_small_model_on_a_cpu_has_room_to_resume_what_is_shared() -> None:
    """The cache of a machine with much free memory is not what is saved on."""
    tiny = model_config_from_hf(json.loads((SHIPPED / "config.json").read_text()))
    result = plan(tiny, Constraints(), Device("cpu", 16 * GIB, declared=False))
    assert result.checkpoints >= 2 * result.planned_running
    assert result.expected_saved > 0.75 * result.workload.shared_prefix_ratio
    assert any("32 sequences" in note for note in result.notes)


def test_what_is_not_declared_of_the_traffic_is_assumed_as_where_nothing_is() -> None:
    part = Workload.of(EngineSettings(model="m", workload_concurrency=8))
    assert part == replace(Workload(), concurrency=8, declared=True)


def test_a_cpu_arena_is_no_larger_than_all_sequences_could_ever_use() -> None:
    small = model("granite-4.0-h-350m")
    limits = Constraints(max_running_requests=2, max_model_len=512)
    result = plan(small, limits, Device("cpu", 64 * GIB, declared=False))
    pages_each = -(-512 // 16)
    ever = 2 * 3 + 4 * 4 + 2 * -(-4 * pages_each // result.pages_per_slab)
    assert result.slabs <= 1 + ever


def test_the_assumed_workload_is_said_and_cut_to_the_models_length() -> None:
    result = plan(NANO, Constraints(max_model_len=1000), CARD)
    assert any("no workload declared" in note for note in result.notes)
    assert result.workload.tokens <= 1000
    assert not plan(NANO, Constraints(), CARD, workload=CHAT).notes


def test_what_was_declared_and_cannot_be_had_is_said() -> None:
    long = Workload(prompt_tokens=900_000, output_tokens=50, declared=True)
    result = plan(NANO, Constraints(), CARD, workload=long)
    assert any("900,000 + 50 tokens" in note for note in result.notes)
    many = plan(NANO, Constraints(), CARD, workload=replace(CHAT, concurrency=60_000))
    assert any("60,000" in note and str(many.max_running_requests) in note for note in many.notes)
    few = plan(NANO, Constraints(max_running_requests=8), CARD, workload=replace(CHAT, concurrency=9))
    assert any(re.search(r"\b9\b.*\b8\b", note) for note in few.notes)
    beyond = plan(NANO, Constraints(max_model_len=NANO.max_position + 1), CARD, workload=CHAT)
    assert any("131,072 tokens" in note for note in beyond.notes)


def test_status_is_what_the_contract_accepts_and_nothing_more() -> None:
    status = plan_engine(NANO, EngineSettings(model="file:///nano"), CARD).to_status()
    parsed = PlanStatus.model_validate(status)
    assert parsed.manifest() == status
    of_pools = {"receiving", "exported", "raised"}
    assert set(status) == {field.alias for field in PlanStatus.model_fields.values()} - of_pools


def test_json_carries_the_status_and_the_engines_numbers() -> None:
    result = plan(NANO, Constraints(), CARD, workload=CHAT)
    shown = json.loads(json.dumps(result.to_json()))
    assert shown.items() >= result.to_status().items()
    assert shown["arenaBytes"] == result.arena_bytes
    assert shown["workload"]["concurrency"] == 64


def test_the_same_input_gives_the_same_plan() -> None:
    assert plan(NANO, Constraints(), CARD, workload=CHAT) == plan(NANO, Constraints(), CARD, workload=CHAT)
