"""`mambaserve download`: copies a model from its source into the local cache, from which engines read it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.model_argument import model_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mamba_planner.model_report import ModelReport


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
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URI",
            envvar="MAMBASERVE_DOWNLOAD_ADAPTER",
            help="LoRA adapter to download beside the model; may be repeated. The report has their commits.",
        ),
    ] = None,
) -> None:
    """Download a model into the cache (HF_HOME), resuming a partial copy, and describe it.

    Jobs in a cluster run it; people type `mambaserve pull`.
    """
    from mamba_cli.local.loading.download_metrics import served_progress

    if keep and not make_room:
        raise InvalidInput("--keep has no effect without --make-room: give both")
    with served_progress(metrics_port) as report_bytes:
        model = _download(uri, report_bytes, keep or () if make_room else None, adapter or ())
    if report is None:
        typer.echo(model.text())
        return
    try:
        report.write_text(model.text(), encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"--report: {report} cannot be written: {error.strerror}") from error


def _download(
    uri: str,
    report_bytes: "Callable[[int, int], None]",
    others: "Collection[str] | None",
    adapters: "Sequence[str]",
) -> "ModelReport":
    """Download the model and its adapters. Raises `InvalidInput`, `RunFailed`."""
    from mamba_cli.local.loading.model_download import downloaded
    from mamba_planner.errors import UnreadableConfig
    from mamba_planner.families.registry import read_config
    from mamba_planner.model_report import ModelReport
    from mamba_server.model.checkpoint.errors import ModelError
    from mamba_server.model.checkpoint.weight_files import weights_size

    uri = model_uri(uri)
    directory = downloaded(uri, report_bytes, others)
    try:
        config, size = read_config(directory), weights_size(directory)
    except (UnreadableConfig, ModelError) as error:
        raise InvalidInput(str(error)) from error
    if size is None:
        raise InvalidInput(
            f"{uri}: has no *.safetensors files: choose a model that is published in that format"
        )
    commits: list[str] = []
    for adapter in adapters:
        # The model and the adapters before this one are needed, too.
        kept = None if others is None else {*others, directory.name, *commits}
        commits.append(downloaded(adapter, report_bytes, kept, adapter=True).name)
    return ModelReport(directory.name, config, size, tuple(commits))
