"""Reads resource profiles from YAML text: the chart's values below `resourceProfiles`.

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
    """Return the profiles of a YAML document by name.

    Args:
        text: YAML, a mapping with `resourceProfiles`; other keys of a chart's values are ignored.
        source: name of the text in messages: a file name.

    Raises:
        InvalidDocument: all problems, one line each.
    """
    documents = [document for document in parse(text, source) if document is not None]
    entries = documents[0].get(KEY, ()) if len(documents) == 1 and isinstance(documents[0], dict) else ()
    if not isinstance(entries, dict | None):
        raise InvalidDocument(
            source, [f"{source}: no {KEY} in it: write a map of names to profiles, as in the chart's values"]
        )
    profiles: dict[str, ResourceProfile] = {}
    problems: list[str] = []
    for name, profile in (entries or {}).items():
        try:
            profiles[_NAME.validate_python(name)] = _read(profile)
        except ValidationError as error:
            lines = explain(error, ResourceProfile)
            problems += [f"{source}: {KEY}.{name}{_below(line)}" for line in lines]
    if problems:
        raise InvalidDocument(source, problems)
    return profiles


def _read(profile: Any) -> ResourceProfile:
    return ResourceProfile.model_validate({} if profile is None else profile, by_alias=True, by_name=False)


def _below(line: str) -> str:
    """Return a line of `explain` such that it can follow the path of the profile or of its field."""
    return line if line.startswith(":") else f".{line}"
