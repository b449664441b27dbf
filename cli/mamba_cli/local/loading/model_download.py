"""`downloaded`: the directory of a model in the model cache, fetched with its progress shown.

`mambaserve download` and `pull` call it.
"""

import re
from collections.abc import Callable, Collection
from pathlib import Path

import typer
from rich.console import Console

from mamba_api.model_uri import DOWNLOADED_PATTERN
from mamba_cli.errors import CliError, InvalidInput, RunFailed
from mamba_cli.local.loading.loading_view import LoadingView
from mamba_cli.local.loading.readiness import EngineReadiness
from mamba_server.model.checkpoint.errors import ModelError
from mamba_server.model.checkpoint.hub_copy import sound_copy
from mamba_server.model.checkpoint.source import hub_cache


def downloaded(
    uri: str,
    report_bytes: Callable[[int, int], None],
    others: Collection[str] | None = None,
    *,
    adapter: bool = False,
) -> Path:
    """Download the missing files of a model or adapter, and return its directory.

    Args:
        uri: a full URI.
        report_bytes: called with the bytes done and in all, in addition to the display.
        others: commits in the cache that other processes need; other copies may be removed if space is
            short. None = no copy is removed.
        adapter: whether `uri` is that of an adapter.

    Raises InvalidInput, RunFailed.
    """
    require_downloaded(uri)
    view = LoadingView(Console(stderr=True))

    def progress(stage: str, done: int, total: int) -> None:
        report_bytes(done, total)
        view.show(uri, EngineReadiness(False, stage, done, total))

    try:
        cache, say = hub_cache()[0], lambda line: typer.echo(line, err=True)
        return sound_copy(uri, cache, progress, say, others, adapter=adapter)
    except ModelError as error:
        raise command_error(error) from error
    finally:
        view.close()


def require_downloaded(uri: str) -> None:
    """Check that `uri` is of a kind whose models are downloaded. Raises InvalidInput."""
    if re.match(DOWNLOADED_PATTERN, uri) is None:
        raise InvalidInput(
            f"{uri}: is no model to download: write hf://OWNER/NAME[@REVISION], or a URI of s3://, "
            "gs://, oci:// or https://"
        )


def command_error(error: ModelError) -> CliError:
    """Return the error of the command: invalid input, or a failure that a later attempt may not have."""
    return (InvalidInput if error.exit_code == InvalidInput.exit_code else RunFailed)(str(error))
