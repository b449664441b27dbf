"""A head for drafts: a short training learns, and engines foresee what the trained head foresees."""

from pathlib import Path
from random import Random

import torch

from engines import make_engine, run
from mamba_server.wire import AddRequest, SamplingParams
from training.tiny_recall import checkpoint, draft_head, tokenizer, train
from training.tiny_recall.draft_head import DraftHead
from training.tiny_recall.model import Shape, TinyHybrid

SMALL = Shape(hidden=32, pattern="M*-", heads=2, head_dim=16, state=8, attention_heads=2, kv_heads=1, mlp=32)


def test_a_head_learns_what_the_model_says() -> None:
    torch.manual_seed(1)
    model, head = TinyHybrid(SMALL).requires_grad_(requires_grad=False), DraftHead(SMALL)
    ids, weights = train.batch(Random(0), tokenizer.build(), draft_head.STAGES[0])
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    losses = []
    for _ in range(6):
        loss, right = draft_head.loss_of(model, head, ids, weights, 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 0.8 * losses[0]
    assert len(right) == 3


def test_an_engine_foresees_what_the_trained_head_foresees(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, head = TinyHybrid(SMALL).eval(), DraftHead(SMALL)
    checkpoint.write(model, tmp_path)
    draft_head.write(head, tmp_path)
    prompt = list(range(5, 37))
    engine = make_engine(tmp_path, speculation="mtp", speculative_tokens=1, dtype="float32")
    drafts, proposed = engine.core.speculation.drafts, []
    propose = drafts.propose
    drafts.propose = lambda decodes: proposed.append(propose(decodes)) or proposed[-1]
    answer = run(engine, [AddRequest("a", prompt, SamplingParams(max_tokens=3, temperature=0.0))])["a", 0]

    with torch.no_grad():
        hidden, text = model.backbone(torch.tensor([prompt])), [*prompt, answer.tokens[0]]
        embedded = model.backbone.embeddings(torch.tensor([text[1:]]))
        foreseen = model.lm_head(head(embedded, hidden)[0, -1]).argmax()
    assert proposed[0][0].tolist() == [int(foreseen)]
    # The training reads the model alone.
    same = checkpoint.read(tmp_path, SMALL).state_dict()
    torch.testing.assert_close(same, model.state_dict(), rtol=0, atol=0)


def test_a_head_replaces_an_earlier_one(tmp_path: Path) -> None:
    checkpoint.write(TinyHybrid(SMALL), tmp_path)
    sizes = []
    for _ in range(2):
        draft_head.write(DraftHead(SMALL), tmp_path)
        sizes.append((tmp_path / "model.safetensors").stat().st_size)
    assert sizes[0] == sizes[1]
