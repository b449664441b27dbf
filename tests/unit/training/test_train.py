"""Training: the schedule, the choice of stages, the loss; a short run learns and repeats."""

from pathlib import Path
from random import Random

import pytest
import torch

from training.tiny_recall import recipe, tokenizer, train
from training.tiny_recall.conversation import Mix
from training.tiny_recall.model import Shape, TinyHybrid
from training.tiny_recall.recipe import STAGES, Stage

WORDS = tokenizer.build()
SHORT = Stage(64, 4, 3, Mix(bare=1.0, idle=0.0, skill=0.0))
SMALL = Shape(hidden=32, pattern="M*-", heads=2, head_dim=16, state=8, attention_heads=2, kv_heads=1, mlp=32)


def test_the_rate_warms_up_to_its_peak_and_falls_to_its_final_share() -> None:
    steps = 1000
    rates = [train.rate(step, steps) for step in range(steps)]
    peak = rates.index(max(rates))
    assert peak in (recipe.WARM_UP - 1, recipe.WARM_UP)
    assert rates[peak] == pytest.approx(1.0)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(recipe.FINAL_SHARE, abs=1e-3)


def test_a_batch_weighs_answers_fully_and_all_else_a_little() -> None:
    ids, weights = train.batch(Random(0), WORDS, SHORT)
    assert ids.shape == (4, 65)
    assert weights.shape == (4, 64)
    assert sorted(weights.unique().tolist()) == pytest.approx([recipe.ELSEWHERE, 1.0])


def test_a_batch_is_the_same_for_the_same_seed() -> None:
    first, second = (train.batch(Random(3), WORDS, SHORT)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_the_weights_stand_at_the_tokens_that_are_foretold() -> None:
    ids, weights = train.batch(Random(0), WORDS, Stage(64, 1, 1, Mix(bare=0.0, idle=1.0, skill=0.0)))
    assistant = WORDS.token_to_id("<|assistant|>")
    starts = [at for at, token in enumerate(ids[0, :-1].tolist()) if token == assistant]
    assert starts
    assert all(weights[0, at] == 1.0 for at in starts)


def test_the_first_stage_is_never_replaced() -> None:
    assert train.chosen(Random(0), STAGES, 0) is STAGES[0]


def test_later_stages_go_back_to_shorter_rows_as_often_as_they_say() -> None:
    random, last = Random(1), len(STAGES) - 1
    lengths = [train.chosen(random, STAGES, last).length for _ in range(1000)]
    shorter = sum(length < STAGES[last].length for length in lengths) / 1000
    assert shorter == pytest.approx(STAGES[last].others, abs=0.05)
    assert set(lengths) == {stage.length for stage in STAGES}


def test_a_repeated_length_keeps_the_mix_of_the_current_stage() -> None:
    random, last = Random(2), len(STAGES) - 1
    assert all(train.chosen(random, STAGES, last).mix == STAGES[last].mix for _ in range(50))


def test_the_recipe_grows_in_length_up_to_1024_tokens() -> None:
    lengths = [stage.length for stage in STAGES]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 1024


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: str(stage.length))
def test_the_shares_of_a_mix_leave_room_for_conversations(stage: Stage) -> None:
    assert 0 < stage.mix.bare + stage.mix.idle < 1
    assert 0 <= stage.others < 1


def test_every_weight_has_exactly_one_optimizer() -> None:
    model = TinyHybrid(SMALL)
    owned = [
        id(weight)
        for optimizer in train.optimizers(model)
        for group in optimizer.param_groups
        for weight in group["params"]
    ]
    assert sorted(owned) == sorted(id(weight) for weight in model.parameters())


def test_some_steps_on_one_batch_lower_the_loss() -> None:
    torch.manual_seed(0)
    model = TinyHybrid(SMALL)
    optimizers = train.optimizers(model)
    ids, weights = train.batch(Random(0), WORDS, SHORT)
    losses = []
    for _ in range(12):
        losses.append(train.learn(model, ids, weights))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.8 * losses[0]


def test_a_run_writes_its_checkpoint_and_repeats_itself_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "Shape", lambda: SMALL)
    monkeypatch.setattr(train, "report", lambda *_: "")
    for name in ("a", "b"):
        train.train(tmp_path / name, (SHORT,), every=3, minutes=60)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
    assert "step 3/3" in capsys.readouterr().out


def test_a_report_names_every_distance_and_skill() -> None:
    torch.manual_seed(0)
    text = train.report(TinyHybrid(SMALL), WORDS, (64,))
    assert text.split()[::2] == ["64", "addition", "copying", "counting", "manners"]
