"""How fast an engine is: the parameters of the cost model, read from a JSON file.

A step takes `step_seconds`, `sequence_seconds` for each sequence that decodes and `context_seconds` for each
token of their contexts; a prompt adds its work (as `prefill_work` counts it) by `prefill_tokens_per_second`.
"""

from pathlib import Path
from typing import Annotated

import msgspec

PROFILES = Path(__file__).parent / "profiles"
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ProfileError(ValueError):
    """There is no such profile, or it is none; the message says what to do."""


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of engine."""

    name: str
    origin: str
    """Where the numbers are from: `fitted` to measurements, or `assumed` with the assumption."""
    prefill_tokens_per_second: Positive
    attention_ratio: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """What attention adds to a token's work for each token before it."""
    step_seconds: Positive
    sequence_seconds: Annotated[float, msgspec.Meta(ge=0.0)]
    context_seconds: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    chunk_tokens: Count = 512
    """Prompt tokens of a step at most."""
    max_running: Count
    slabs: Count
    """State slots of the arena, all memory counted in them."""
    tokens_per_state: Count
    """Tokens whose attention KV takes the bytes of one state."""
    fit_error: float | None = None
    """Mean absolute error of the fit, relative; None where nothing was fitted."""


def profile(name: str) -> EngineProfile:
    """The shipped profile of that name, or the one in the file. Raises `ProfileError`."""
    path = PROFILES / f"{name}.json"
    if not path.is_file():
        path = Path(name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineProfile)
    except FileNotFoundError:
        shipped = ", ".join(sorted(each.stem for each in PROFILES.glob("*.json")))
        raise ProfileError(f"no engine profile {name}: give a file, or one of {shipped}") from None
    except msgspec.DecodeError as error:
        raise ProfileError(f"{path}: {error}") from None
