"""The engine profiles that are shipped with the benchmark, as JSON files, and those of a user."""

from pathlib import Path

import msgspec

from mamba_cli.fleet.engine_profile import EngineProfile

PROFILES = Path(__file__).parent / "profiles"


class ProfileError(ValueError):
    """There is no such profile, or it is none; the message says what to do."""


def profile(name: str) -> EngineProfile:
    """Return the shipped profile of that name, or the one in the file. Raises `ProfileError`."""
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
