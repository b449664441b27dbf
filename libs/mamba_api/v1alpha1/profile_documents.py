"""Reads resource profiles out of YAML text: what the chart's values have below `resourceProfiles`.

The operator and the command line read the same file. Pure: the caller passes the text and its name.
"""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from mamba_api.errors import InvalidDocument
from mamba_api.v1alpha1.documents import explain, parse
from mamba_api.v1alpha1.pods import ProfileName
from mamba_api.v1alpha1.profiles import Profiles, ResourceProfile

KEY = "resourceProfiles"
_NAME: TypeAdapter[str] = TypeAdapter(ProfileName)


def read_profiles(text: str, source: str) -> Profiles:
    """The profiles of a YAML document, by name.

    Args:
        text: YAML, a mapping with `resourceProfiles`; the rest of a chart's values is left alone.
        source: what to call the text in messages: a file name.

    Raises:
        InvalidDocument: all problems, one line each.
    """
    documents = [one for one in parse(text, source) if one is not None]
    given = documents[0].get(KEY, ()) if len(documents) == 1 and isinstance(documents[0], dict) else ()
    if not isinstance(given, dict | None):
        raise InvalidDocument(
            source, [f"{source}: no {KEY} in it: a map of names to profiles, as in the chart's values"]
        )
    found: dict[str, ResourceProfile] = {}
    problems: list[str] = []
    for name, profile in (given or {}).items():
        try:
            found[_NAME.validate_python(name)] = _read(profile)
        except ValidationError as error:
            lines = explain(error, ResourceProfile)
            problems += [f"{source}: {KEY}.{name}{_below(line)}" for line in lines]
    if problems:
        raise InvalidDocument(source, problems)
    return found


def _read(profile: Any) -> ResourceProfile:
    return ResourceProfile.model_validate({} if profile is None else profile, by_alias=True, by_name=False)


def _below(line: str) -> str:
    """A line of `explain` after the path of what was read: of the whole of it, or of a field."""
    return line if line.startswith(":") else f".{line}"
