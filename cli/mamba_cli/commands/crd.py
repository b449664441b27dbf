"""`mambaserve crd`: the CustomResourceDefinition on standard output or in the files of the source tree."""

from pathlib import Path
from typing import Annotated

import typer

from mamba_cli.errors import InvalidInput, RunFailed

CRDS = Path("crds")
CHART = Path("charts/mambaserve/templates")


def command(
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            envvar="MAMBASERVE_CRD_WRITE",
            help="Write crds/ and the chart's copy instead of printing the CRDs.",
        ),
    ] = False,
    directory: Annotated[
        Path,
        typer.Option(envvar="MAMBASERVE_CRD_DIRECTORY", help="Root of the source tree that --write changes."),
    ] = Path(),
) -> None:
    """Print the CRDs as YAML.

    Example: mambaserve crd | kubectl apply --server-side -f -
    """
    from mamba_api.v1alpha1.schema import CUSTOM_KINDS, all_crds_yaml, chart_template, crd_yaml

    if not write:
        typer.echo(all_crds_yaml(), nl=False)
        return
    if not (directory / "pyproject.toml").is_file():
        raise InvalidInput(f"--directory: {directory.resolve()} is not the root of the source tree")
    files = {
        path: text
        for kind in CUSTOM_KINDS
        for path, text in (
            (CRDS / f"{kind.name}.yaml", crd_yaml(kind)),
            (CHART / f"crd-{kind.plural}.yaml", chart_template(kind)),
        )
    }
    for path, text in files.items():
        target = directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_file() and target.read_text() == text:
                continue
            target.write_text(text)
        except OSError as error:
            raise RunFailed(f"{target} cannot be written: {error}") from error
        typer.echo(f"wrote {path}", err=True)
