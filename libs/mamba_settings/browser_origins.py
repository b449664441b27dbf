"""Origins whose pages may call a server from a browser: the same setting at engine and gateway.

`mamba_edge.app.cors` acts on it.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from mamba_api.v1alpha1.gateway import ORIGIN

_ORIGIN = re.compile(ORIGIN)


def _split(value: Any) -> Any:
    return tuple(value.split()) if isinstance(value, str) else value


def _origins(value: tuple[str, ...]) -> tuple[str, ...]:
    for origin in value:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is no origin: write SCHEME://HOST[:PORT] in lower case and without a path, "
                "such as https://chat.example.org, or * for every page"
            )
    return tuple(dict.fromkeys(value))


Origins = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_origins)]


class BrowserOrigins(BaseModel):
    """Browsers."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    cors_origin: Origins = ()
    """Origins whose pages may call the API from a browser, such as https://chat.example.org, or * for all;
    default: none. In the environment, separate them with spaces."""
