"""Builds the tokenizer of tiny-recall: one id per known word, one per byte for everything else.

A pre-token that is in the vocabulary becomes one id; any other is spelled byte by byte, so every UTF-8 text
round-trips and no text is refused. There are no merges: nothing here depends on a training corpus.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from training.tiny_recall.vocabulary import ASSISTANT, END, PAD, SPECIAL_TOKENS, SYSTEM, USER, WORDS

PIECES = r"[A-Za-z]+|\s|[^A-Za-z\s]"
"""A pre-token: a run of letters, or one other character. Spaces stay apart, so that a word has one
id at the start of a line, after a space and at the start of an answer: copying stays token by token."""

CHAT_TEMPLATE = (
    "{%- if tools -%}" + SYSTEM + "{{- tools | tojson -}} A call: "
    '<tool_call>{"name": ..., "arguments": ...}</tool_call>' + END + "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' or message.role == 'developer' -%}" + SYSTEM + "{%- elif "
    "message.role == 'user' or message.role == 'tool' -%}" + USER + "{%- elif message.role == 'assistant' -%}"
    "" + ASSISTANT + "{%- else -%}"
    "{{- raise_exception('The role of a message must be system, developer, user, assistant or tool, not ' "
    "~ message.role) -}}"
    "{%- endif -%}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- elif message.content -%}"
    "{%- for part in message.content -%}{{- part.text if part.text is defined else '' -}}{%- endfor -%}"
    "{%- endif -%}"
    "{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}"
    '<tool_call>{"name": {{ call.function.name | tojson }}, '
    '"arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{%- endfor -%}{%- endif -%}" + END + "{%- endfor -%}"
    "{%- if add_generation_prompt -%}" + ASSISTANT + "{%- endif -%}\n"
)
"""Roles in, tokens out: `<|user|>text<|end|><|assistant|>`. An unknown role is an error, never dropped.

Tools are shown and calls are written as Hermes does, so that agents can be tried with this model: it was not
trained to call, so a call has to be forced. Without tools the text is what the model was trained with."""


def build() -> Tokenizer:
    """Build the tokenizer: ids are 5 special tokens, 256 bytes, then the vocabulary's words in order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*SPECIAL_TOKENS, *alphabet, *(word for word in WORDS if len(word) > 1)]
    if len(set(entries)) != len(entries):
        raise ValueError(
            f"a word stands twice in the vocabulary: {sorted({e for e in entries if entries.count(e) > 1})}"
        )
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def settings(max_length: int) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "bos_token": None,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": None,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write(folder: Path, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into the folder."""
    build().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings(max_length), indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
