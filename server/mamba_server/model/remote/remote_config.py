"""`remote_facts`: config.json of a model in a store, and the size of its weights, for the planner.

`mamba_cli` calls it. Weights are never read: their size is that of the files.
"""

import json
from dataclasses import dataclass
from typing import Any

from mamba_api.model_uri import ModelUri
from mamba_server.model.remote.archives import find_config
from mamba_server.model.remote.errors import DamagedFile, MissingFiles, RemoteError
from mamba_server.model.remote.store_of import store_of

_LARGEST_CONFIG = 16 << 20


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """Facts about a model in a store."""

    config: dict[str, Any]
    """The model's config.json."""
    weights_bytes: int
    """Bytes of the safetensors files; 0 = unknown, because they are in an archive."""


def remote_facts(uri: ModelUri, text: str) -> RemoteFacts:
    """Fetch config.json of a model, and sum the sizes of its weights.

    Args:
        uri: the parsed URI, with a scheme of `REMOTE`.
        text: the URI as it was written, for messages.

    Raises RemoteError.
    """
    store = store_of(uri, text)
    files = store.files()
    weights = sum(file.size for file in files if file.path.endswith(".safetensors"))
    config = next((file for file in files if file.path == "config.json"), None)
    if config is not None:
        if config.size > _LARGEST_CONFIG:
            raise MissingFiles(
                f"{text}: config.json is larger than {_LARGEST_CONFIG >> 20} MiB: check the file"
            )
        content = b"".join(store.read(config, 0, config.size)) if config.size else b""
    else:
        content = _packed_config([find for find in files if find.packing], store, text)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{text}: config.json cannot be read ({error}): upload it again") from error
    if not isinstance(document, dict):
        raise DamagedFile(f"{text}: config.json holds no JSON object: upload it again")
    return RemoteFacts(document, weights)


def _packed_config(archives: Any, store: Any, text: str) -> bytes:
    last: RemoteError = MissingFiles(f"{text}: there is no config.json")
    for archive in sorted(archives, key=lambda file: file.size):
        try:
            return find_config(store, archive)
        except MissingFiles as error:
            last = MissingFiles(f"{text}: {error}")
    raise last
