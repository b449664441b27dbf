"""The sample prompts: true by their own document, not written when a model fails them."""

import sys
from pathlib import Path

import pytest

from training.tiny_recall import samples, tokenizer

CONTENT = samples.content()
WORDS = tokenizer.build()


def test_the_shared_document_is_about_600_tokens_long() -> None:
    assert 550 <= len(WORDS.encode(CONTENT["document"]).ids) <= 680


def test_every_question_has_its_one_answer_in_the_document() -> None:
    lines = CONTENT["document"].splitlines()
    assert len(CONTENT["questions"]) == 5
    for entry in CONTENT["questions"]:
        key = entry["question"].removeprefix("What is ").removesuffix("?")
        assert [line for line in lines if line.startswith(f"{key}:")] == [f"{key}: {entry['answer']}"]


def test_questions_ask_for_facts_from_the_start_to_the_end_of_the_document() -> None:
    places = [
        CONTENT["document"].index(f"\n{entry['question'][8:-1]}:") / len(CONTENT["document"])
        for entry in CONTENT["questions"]
    ]
    assert places == sorted(places)
    assert places[0] < 0.1
    assert places[-1] > 0.9


def test_every_prompt_is_a_bare_text_or_messages_that_end_with_the_user() -> None:
    prompts = samples.prompts(CONTENT)
    assert len(prompts) == 2 * 5 + len(CONTENT["chats"]) + len(CONTENT["completions"])
    for prompt, answer in prompts:
        assert answer
        assert isinstance(prompt, str) or prompt[-1]["role"] == "user"


def test_the_content_is_the_same_every_time() -> None:
    assert samples.content() == CONTENT


def test_samples_are_written_when_every_answer_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [answer for _, answer in samples.prompts(CONTENT)]
    monkeypatch.setattr(samples, "answers", lambda *_: expected)
    monkeypatch.setattr(sys, "argv", ["samples", str(tmp_path)])
    samples.main()
    assert (tmp_path / "samples.json").is_file()


def test_samples_are_not_written_when_one_answer_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [answer for _, answer in samples.prompts(CONTENT)]
    said[0] = "something else"
    monkeypatch.setattr(samples, "answers", lambda *_: said)
    monkeypatch.setattr(sys, "argv", ["samples", str(tmp_path)])
    with pytest.raises(SystemExit, match="1 samples are answered wrong"):
        samples.main()
    assert not (tmp_path / "samples.json").exists()
    assert "WRONG" in capsys.readouterr().err
