"""`mambaserve download`: copies a model from its source into the local cache, from which engines read it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mamba_api.model_uri import DOWNLOADED_PATTERN
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.model_argument import model_uri

if TYPE_CHECKING:
    from collections.abc import Collection

    from mamba_planner.model_report import ModelReport
    from mamba_server.model.checkpoint.source import Progress


def command(
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI",
            envvar="MAMBASERVE_DOWNLOAD_URI",
            help="Model on the Hub, OWNER/NAME[@REVISION] with or without hf://, or a URI of s3://, gs://, "
            "oci:// or https://.",
        ),
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_DOWNLOAD_REPORT",
            help="File for commit, configuration and size of the weights, as JSON; default: standard output.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_DOWNLOAD_METRICS_PORT",
            min=1,
            max=65535,
            help="Port on which /metrics reports bytes fetched and bytes in all; default: no metrics.",
        ),
    ] = None,
    make_room: Annotated[
        bool,
        typer.Option(
            "--make-room",
            envvar="MAMBASERVE_DOWNLOAD_MAKE_ROOM",
            help="Remove partial files of earlier downloads and, where the disk lacks room, every other "
            "model and commit except those of --keep. Use it for a cache that nothing else fills.",
        ),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMIT",
            envvar="MAMBASERVE_DOWNLOAD_KEEP",
            help="Commit that --make-room must not remove; may be repeated.",
        ),
    ] = None,
) -> None:
    """Download a model into the cache (HF_HOME), resuming a partial copy, and describe it."""
    from rich.console import Console

    from mamba_cli.local.loading.download_metrics import served_progress
    from mamba_cli.local.loading.loading_view import LoadingView
    from mamba_cli.local.loading.readiness import EngineReadiness
    from mamba_server.model.checkpoint.errors import ModelError

    if keep and not make_room:
        raise InvalidInput("--keep has no effect without --make-room: give both")
    view = LoadingView(Console(stderr=True))
    try:
        with served_progress(metrics_port) as report_bytes:

            def progress(stage: str, done: int, total: int) -> None:
                report_bytes(done, total)
                view.show(uri, EngineReadiness(False, stage, done, total))

            model = _download(uri, progress, keep or () if make_room else None)
    except ModelError as error:
        wrong = error.exit_code == InvalidInput.exit_code
        raise (InvalidInput if wrong else RunFailed)(str(error)) from error
    finally:
        view.close()
    if report is None:
        typer.echo(model.text())
        return
    try:
        report.write_text(model.text(), encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"--report: {report} cannot be written: {error.strerror}") from error


def _download(uri: str, progress: "Progress", others: "Collection[str] | None") -> "ModelReport":
    """Download the model. Raises `InvalidInput` and the errors of `mamba_server.model`."""
    from mamba_planner.errors import UnreadableConfig
    from mamba_planner.families.registry import read_config
    from mamba_planner.model_report import ModelReport
    from mamba_server.model.checkpoint.hub_copy import sound_copy
    from mamba_server.model.checkpoint.source import hub_cache
    from mamba_server.model.checkpoint.weight_files import weights_size

    uri = model_uri(uri)
    if re.match(DOWNLOADED_PATTERN, uri) is None:
        raise InvalidInput(
            f"{uri}: is no model to download: write hf://OWNER/NAME[@REVISION], or a URI of s3://, "
            "gs://, oci:// or https://"
        )
    cache, _ = hub_cache()
    directory = sound_copy(uri, cache, progress, lambda line: typer.echo(line, err=True), others)
    try:
        config = read_config(directory)
    except UnreadableConfig as error:
        raise InvalidInput(str(error)) from error
    size = weights_size(directory)
    if size is None:
        raise InvalidInput(
            f"{uri}: has no *.safetensors files: choose a model that is published in that format"
        )
    return ModelReport(directory.name, config, size)
