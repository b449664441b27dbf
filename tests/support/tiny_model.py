"""A model directory without weights: a byte-level tokenizer with special tokens, templates, defaults."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{% if message['content'] == 'refuse me' %}{{ raise_exception('no refusals here') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "hello world, the quick brown fox jumps over the lazy dog. user assistant system tool",
    "to be or not to be, that is the question. one two three four five six seven eight nine ten",
]


def byte_level_tokenizer(*, bos: bool = True) -> Tokenizer:
    """Return a tokenizer of all bytes, so that every text has ids; some English is merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    return tokenizer


def write_model(directory: Path, **changes: Any) -> Path:
    """Write a model directory; `changes` name the parts that differ: template, config, tokenizer, etc."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = changes.get("tokenizer") or byte_level_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size(with_added_tokens=True)
    config = {"model_type": "mamba2", "vocab_size": vocab, **changes.get("config", {})}
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer_config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        **changes.get("tokenizer_config", {}),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if (template := changes.get("template", TEMPLATE)) is not None:
        (directory / "chat_template.jinja").write_text(template)
    if "generation_config" in changes:
        (directory / "generation_config.json").write_text(json.dumps(changes["generation_config"]))
    return directory
