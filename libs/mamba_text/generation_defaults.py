"""Sampling defaults of a model, from its `generation_config.json`.

A request's own values take precedence. A value of the wrong type in the file is an error of the model
directory, not of a request.
"""

from dataclasses import dataclass
from pathlib import Path

from mamba_text.errors import BadTokenizer
from mamba_text.tokenizer import read_json


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values that a request gets for fields that it leaves out, from the model's files.

    None = the file has no value either.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    eos_token_ids: tuple[int, ...] = ()
    min_p: float | None = None

    @classmethod
    def load(cls, directory: Path) -> "GenerationDefaults":
        """Read `generation_config.json`, which may be missing. Raises BadTokenizer for a wrong value."""
        path = directory / "generation_config.json"
        raw = read_json(path)

        def number(name: str, low: float, high: float) -> float | None:
            value = raw.get(name)
            if value is None:
                return None
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise BadTokenizer(f"{path}: {name} must be a number from {low:g} to {high:g}, is {value!r}")
            return float(value)

        eos = raw.get("eos_token_id")
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        if not all(type(item) is int and item >= 0 for item in ids):
            raise BadTokenizer(f"{path}: eos_token_id must be token ids, is {eos!r}")
        top_k = number("top_k", 0, 2**31 - 1)
        # `do_sample: false` means greedy whatever the temperature says.
        greedy = raw.get("do_sample") is False and "temperature" not in raw
        return cls(
            temperature=0.0 if greedy else number("temperature", 0, 10),
            top_p=number("top_p", 0, 1) or None,
            top_k=None if top_k is None else int(top_k),
            min_p=number("min_p", 0, 1),
            repetition_penalty=number("repetition_penalty", 0, 10) or None,
            eos_token_ids=tuple(ids),
        )
