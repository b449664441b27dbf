"""Source of a model: the four kinds of URI in `spec.model.uri`.

The operator (mounts, weights download), local mode and the engine all read URIs through `parse_model_uri`.
"""

import re
from dataclasses import dataclass
from typing import Literal

from mamba_api.errors import InvalidModelUri

Scheme = Literal["hf", "pvc", "file", "builtin"]

URI_PATTERN = (
    r"^(hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(@[A-Za-z0-9._/-]+)?"
    r"|pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?/.+"
    r"|file://.+"
    r"|builtin://[a-z0-9][a-z0-9-]*)$"
)
FORMS = "hf://owner/name[@revision], pvc://claim/path, file:///path or builtin://name"


@dataclass(frozen=True, slots=True)
class ModelUri:
    """A parsed model URI."""

    scheme: Scheme
    name: str
    """hf: owner/name; pvc: the claim; file: empty; builtin: the model's name."""
    path: str = ""
    """pvc: path inside the claim, without a leading slash; file: the path as written."""
    revision: str | None = None
    """hf: branch, tag or commit."""

    @property
    def short_name(self) -> str:
        """Last part of the URI, which people use as the name of the model."""
        return (self.path or self.name).rstrip("/").rsplit("/", 1)[-1]


def parse_model_uri(text: str) -> ModelUri:
    """Parse `text`. Raises `InvalidModelUri` with the accepted forms."""
    if re.fullmatch(URI_PATTERN[1:-1], text, re.ASCII) is None:
        raise InvalidModelUri(f"{text!r} is no model URI: use {FORMS}")
    scheme, rest = text.split("://", 1)
    match scheme:
        case "hf":
            name, _, revision = rest.partition("@")
            return ModelUri("hf", name, revision=revision or None)
        case "pvc":
            claim, _, path = rest.partition("/")
            if ".." in path.split("/"):
                raise InvalidModelUri(f"{text!r} leaves the claim: the path must not contain '..'")
            return ModelUri("pvc", claim, path=path.strip("/"))
        case "file":
            return ModelUri("file", "", path=rest)
        case _:
            return ModelUri("builtin", rest)
