"""`mambaserve pull`: downloads a model that people will serve, after a look whether it can be served."""

import os.path
from pathlib import Path
from typing import Annotated

import typer

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.model_argument import model_uri
from mamba_cli.output import OutputFormat, print_document


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            envvar="MAMBASERVE_PULL_MODEL",
            help="Model on the Hub, OWNER/NAME[@REVISION], or a URI of s3://, gs://, oci:// or https://.",
        ),
    ],
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
) -> None:
    """Download a model into the cache from which `serve`, `run` and `up` read it.

    A second call continues a download that broke off. A model that this version cannot serve is refused
    before its weights are fetched.
    """
    from mamba_cli.commands.models.listing import copy_document
    from mamba_cli.local.loading.model_download import downloaded
    from mamba_server.model.checkpoint.cached_models import cached_model
    from mamba_settings.byte_size import binary_size

    uri = _pulled_uri(model)
    _require_served(uri)
    try:
        copy = cached_model(downloaded(uri, lambda _done, _total: None))
    except KeyboardInterrupt:
        typer.echo(f"stopped: mambaserve pull {model} continues", err=True)
        raise typer.Exit(130) from None
    if copy.state != "complete":
        raise InvalidInput(
            f"{model}: has no *.safetensors files: choose a model that is published in that format"
        )
    if output is not OutputFormat.table:
        print_document(copy_document(copy), output)
        return
    kind = f"{copy.family} in {copy.precision}"
    typer.echo(f"{model}: {binary_size(copy.size)}, {kind}, commit {copy.commit}, in {copy.directory}")
    typer.echo(f"talk to it with: mambaserve run {model}")


def _pulled_uri(model: str) -> str:
    """Return the full URI of a model to download.

    Raises InvalidInput for a model that needs no download, and for a text that names no source.
    """
    from mamba_cli.local.loading.model_download import require_downloaded

    uri = model_uri(model)
    if uri.startswith("builtin://"):
        raise InvalidInput(f"{model} ships with mambaserve: mambaserve run {model}")
    if "://" not in uri and os.path.isdir(uri):
        raise InvalidInput(f"{model} is a directory of this machine: mambaserve run {model}")
    if "://" not in uri:
        raise InvalidInput(
            f"{model}: is no model to download: write OWNER/NAME as on the Hub, or a URI of s3://, gs://, "
            "oci:// or https://"
        )
    require_downloaded(uri)
    return uri


def _require_served(uri: str) -> None:
    """Check that the source has the model, and that this version serves it, by its config.json alone.

    Raises InvalidInput, RunFailed.
    """
    from mamba_api.errors import InvalidModelUri
    from mamba_cli.local.loading.model_download import command_error
    from mamba_cli.local.model_facts import UnreadableHub, facts_of_uri
    from mamba_planner.families.registry import why_not_served
    from mamba_server.model.checkpoint.errors import ModelError
    from mamba_server.model.checkpoint.source import check_download

    try:
        # Its messages tell a wrong name from a missing token and from a network that is away.
        check_download(uri)
        config = facts_of_uri(uri, Path()).config
    except ModelError as error:
        raise command_error(error) from error
    except InvalidModelUri as error:
        raise InvalidInput(str(error)) from error
    except UnreadableHub as error:
        raise RunFailed(str(error)) from error
    if problem := why_not_served(config):
        raise InvalidInput(f"{uri}: {problem}")
