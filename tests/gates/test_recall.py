"""The shipped model remembers as well through the cache as without it, request by request."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE, STRATEGIES, THIRD, Case
from mamba_kernels.cpu.library import library
from mamba_server.engine.boot import Engine
from mamba_server.wire import AddRequest

TIE = 1e-4
Answers = dict[tuple[str, int], Answer]


class Talk:
    """The samples beside the weights as requests of one question each, and their answers."""

    def __init__(self, directory: Path) -> None:
        self.samples: dict[str, Any] = json.loads((directory / "samples.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.template = jinja2.Template((directory / "chat_template.jinja").read_text())

    def ids(self, messages: list[dict[str, str]], *, generate: bool) -> list[int]:
        text = self.template.render(messages=messages, add_generation_prompt=generate)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def asking(self, messages: list[dict[str, str]], name: str, answer: str) -> AddRequest:
        # One more than the answer: its end.
        outputs = len(self.tokenizer.encode(answer, add_special_tokens=False).ids) + 1
        boundary = len(self.ids(messages, generate=False))
        return greedy(name, self.ids(messages, generate=True), outputs, turn_boundary=boundary)

    def document(self) -> AddRequest:
        return self.asking([{"role": "user", "content": self.samples["document"]}], "document", "OK.")

    def questions(self, prefix: str) -> list[AddRequest]:
        """Return the second turns that branch from the document's, and chats."""
        noted = [
            {"role": "user", "content": self.samples["document"]},
            {"role": "assistant", "content": "OK."},
        ]
        cases = [
            ([*noted, {"role": "user", "content": each["question"]}], each["answer"])
            for each in self.samples["questions"]
        ]
        cases += [(each["messages"], each["answer"]) for each in self.samples["chats"]]
        return [
            self.asking(messages, f"{prefix}{index}", answer)
            for index, (messages, answer) in enumerate(cases)
        ]

    def right_answers(self) -> list[str]:
        return [each["answer"] for each in (*self.samples["questions"], *self.samples["chats"])]


@pytest.fixture(scope="module")
def talk(tiny_recall: Path) -> Talk:
    return Talk(tiny_recall)


@pytest.fixture(scope="module")
def truth(tiny_recall: Path, talk: Talk) -> list[Answer]:
    """Answer each question alone, its whole prompt computed."""
    engine = make_engine(tiny_recall, prefix_caching=False)
    return [run(engine, [each])[each.request_id, 0] for each in talk.questions("q")]


def assert_same(answers: Answers, prefix: str, truth: list[Answer]) -> None:
    """Compare tokens; a difference counts unless the two best were within `TIE` of each other."""
    for index, expected in enumerate(truth):
        got = answers[f"{prefix}{index}", 0]
        for ours, theirs in zip(got.logprobs, expected.logprobs, strict=True):
            if ours.token_id == theirs.token_id:
                assert abs(ours.logprob - theirs.logprob) < TIE
                continue
            best, second = theirs.top_logprobs[:2]
            assert best - second < TIE, (prefix, index, ours, theirs)
            break


def hits(answers: Answers, prefix: str) -> int:
    return sum(answer.cached_tokens > 0 for (name, _), answer in answers.items() if name.startswith(prefix))


def test_the_answers_are_right(talk: Talk, truth: list[Answer]) -> None:
    for answer, right in zip(truth, talk.right_answers(), strict=True):
        assert talk.tokenizer.decode(answer.tokens).strip() == right


@pytest.mark.parametrize("case", THIRD, ids=str)
def test_second_turns_and_branches_remember(
    tiny_recall: Path, talk: Talk, truth: list[Answer], case: Case
) -> None:
    engine = case.boot(tiny_recall)
    run(engine, [talk.document()])
    for prefix in ("q", "again"):
        answers = run(engine, talk.questions(prefix))
        assert_same(answers, prefix, truth)
        assert hits(answers, prefix) >= len(talk.samples["questions"])


@pytest.mark.parametrize("strategy", STRATEGIES if LARGE else STRATEGIES[1:2])
def test_it_remembers_after_eviction_and_a_new_prefill(
    tiny_recall: Path, talk: Talk, truth: list[Answer], strategy: str
) -> None:
    case = Case(strategy, True, 16, 64)
    slab = case.boot(tiny_recall).plan.slab_bytes
    engine = case.boot(tiny_recall, arena_bytes=24 * slab, max_model_len=1024, max_running_requests=None)
    rng = random.Random(1)
    for round_ in range(3):
        answers = run(engine, talk.questions(f"{round_}-"))
        assert_same(answers, f"{round_}-", truth)
        noise = [greedy(f"n{round_}{i}", [rng.randrange(300) for _ in range(400)], 2) for i in range(3)]
        run(engine, noise)
    assert engine.core.cache.counters.evicted > 0


def forced(engine: Engine, every: int) -> Any:
    """Preempt a sequence every few steps."""
    rng = random.Random(2)

    def before(number: int) -> None:
        running = [*engine.core.scheduler.prefilling, *engine.core.scheduler.decoding]
        if running and number % every == every - 1:
            engine.core.scheduler.preempt(rng.choice(running))

    return before


@pytest.mark.parametrize(
    ("strategy", "overlap"),
    [*product(STRATEGIES, (True, False))] if LARGE else [*zip(STRATEGIES, (False, True, False), strict=True)],
)
def test_it_remembers_after_preemption(
    tiny_recall: Path, talk: Talk, truth: list[Answer], strategy: str, overlap: bool
) -> None:
    engine = Case(strategy, overlap, 16, 64).boot(tiny_recall, chunked_prefill_tokens=256)
    answers = run(engine, talk.questions("q"), before_step=forced(engine, 3))
    assert engine.core.scheduler.counters.preemptions >= 5
    assert_same(answers, "q", truth)


@pytest.mark.parametrize("overlap", [True, False] if LARGE else [True])
def test_it_remembers_across_changes_of_strategy(
    tiny_recall: Path, talk: Talk, truth: list[Answer], overlap: bool
) -> None:
    engine = Case("NoBuffer", overlap, 16, 64).boot(tiny_recall, max_running_requests=8)
    changes: list[object] = []

    def change(number: int) -> None:
        if number % 3 == 2:
            changes.append(engine.core.change_strategy(STRATEGIES[number // 3 % 3]))

    for round_ in range(6 if LARGE else 2):
        answers = run(engine, talk.questions(f"{round_}-"), before_step=change)
        assert_same(answers, f"{round_}-", truth)
    assert len(changes) > 5
    assert not any(changes)


def test_it_remembers_with_matrices_of_int8(tiny_recall: Path, talk: Talk) -> None:
    if library() is None:
        pytest.skip("no C++ kernels on this machine")
    settings: dict[str, Any] = {"quantization": "int8", "dtype": "float32"}
    alone = make_engine(tiny_recall, prefix_caching=False, **settings)
    truth = [run(alone, [each])[each.request_id, 0] for each in talk.questions("q")]
    engine = make_engine(tiny_recall, track_interval=16, **settings)
    run(engine, [talk.document()])
    answers = run(engine, talk.questions("q"))
    assert_same(answers, "q", truth)
    assert hits(answers, "q") >= len(talk.samples["questions"])
    said = [talk.tokenizer.decode(answer.tokens).strip() for answer in truth]
    wrong = [1 for ours, right in zip(said, talk.right_answers(), strict=True) if ours != right]
    assert len(wrong) <= len(said) // 20
