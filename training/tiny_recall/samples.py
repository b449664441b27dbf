"""The sample prompts that ship beside the model: `python -m training.tiny_recall.samples FOLDER`.

Asks the checkpoint in FOLDER every sample through transformers, greedily, and writes FOLDER/samples.json only
if all answers are right. The demo, the quick start and the end-to-end tests read that file.
"""

import argparse
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from training.tiny_recall import facts, filler, skills
from training.tiny_recall.vocabulary import THINGS, VALUE_WORDS

SEED = 5
FACTS = 78
ASKED = (3, 19, 40, 57, 75)
"""Which facts of the document the questions are about: near its start, in its middle, near its end."""

Message = dict[str, str]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def document(random: Random) -> tuple[str, list[facts.Fact]]:
    """Return a document of facts, about 600 tokens long, with a sentence of filler after every twelfth."""
    known: list[facts.Fact] = []
    lines = ["Remember these facts."]
    keys = [*THINGS, *(f"{thing} {random.randint(1, 99)}" for thing in THINGS)]
    for key in random.sample(keys, min(FACTS, len(keys))):
        known.append(facts.Fact(key, random.choice(VALUE_WORDS)))
        lines.append(f"{key}: {known[-1].value}")
        if len(known) % 12 == 0:
            lines.append(random.choice(filler.SENTENCES))
    return "\n".join(lines), known


def content() -> dict[str, Any]:
    """Return a document with questions, chats (messages, answer), and completions (prompt, answer)."""
    text, known = document(Random(SEED))
    questions = [
        {"question": f"What is {known[index].key}?", "answer": known[index].value} for index in ASKED
    ]
    facts_turn = [user("Remember: anna = blue, bob = 42, door 7 = silver fox"), assistant(skills.NOTED)]
    chats = [
        {"messages": [user("Hello!")], "answer": "Hello! How can I help you?"},
        {"messages": [*facts_turn, user("What is anna?")], "answer": "blue"},
        {
            "messages": [*facts_turn, user("What is anna?"), assistant("blue"), user("What is door 7?")],
            "answer": "silver fox",
        },
        {
            "messages": [
                {"role": "system", "content": "You are a helpful assistant.\nFacts:\nlamp: green\nkey: iron"},
                user("What is the lamp?"),
            ],
            "answer": "green",
        },
        {"messages": [user("Repeat: red fox blue owl")], "answer": "red fox blue owl"},
        {"messages": [user("Count from 3 to 9.")], "answer": "3 4 5 6 7 8 9"},
        {"messages": [user("What is 2 + 3?")], "answer": "5"},
        {"messages": [user("What is 17 + 25?")], "answer": "42"},
        {"messages": [user("Thank you!")], "answer": "You are welcome."},
        {"messages": [user("Goodbye!")], "answer": "Goodbye!"},
    ]
    completions = [{"prompt": "lamp: red\ncar: owl\nbook: paris\ncar:", "answer": " owl\n"}]
    return {"document": text, "questions": questions, "chats": chats, "completions": completions}


def prompts(content: dict[str, Any]) -> list[tuple[list[Message] | str, str]]:
    """Return all samples as (messages or bare prompt, answer); questions stand with the document or after."""
    found: list[tuple[list[Message] | str, str]] = []
    text = content["document"]
    for entry in content["questions"]:
        found.append(([user(f"{text}\n{entry['question']}")], entry["answer"]))
        found.append(([user(text), assistant(skills.NOTED), user(entry["question"])], entry["answer"]))
    found += [(entry["messages"], entry["answer"]) for entry in content["chats"]]
    return found + [(entry["prompt"], entry["answer"]) for entry in content["completions"]]


def answers(folder: Path, content: dict[str, Any]) -> list[str]:
    """Return the answers of the checkpoint to every sample under greedy decoding, through transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    said: list[str] = []
    for prompt, answer in prompts(content):
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt, add_special_tokens=False)
            limit = len(tokenizer.encode(answer, add_special_tokens=False))
        else:
            ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
            limit = 48
        inputs = torch.tensor([ids])
        output = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=limit, do_sample=False
        )
        said.append(tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True))
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description="Verify and write the samples of a tiny-recall checkpoint.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    chosen = content()
    wrong = 0
    for (prompt, answer), said in zip(prompts(chosen), answers(folder, chosen), strict=True):
        asked = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        mark = "right" if said == answer else "WRONG"
        wrong += said != answer
        print(f"{mark}  {asked.splitlines()[-1]!r} -> {said!r}, expected {answer!r}", file=sys.stderr)
    if wrong:
        sys.exit(f"{wrong} samples are answered wrong: {folder / 'samples.json'} was not written")
    (folder / "samples.json").write_text(json.dumps(chosen, indent=2) + "\n")


if __name__ == "__main__":
    main()
