"""The option of `plan` and `up` for a file with the resource profiles of a cluster."""

from pathlib import Path
from typing import Annotated

import typer

ProfilesOption = Annotated[
    Path | None,
    typer.Option(
        "--resource-profiles",
        envvar="MAMBASERVE_RESOURCE_PROFILES",
        help="YAML file with the resourceProfiles of a cluster, such as the chart's values.",
    ),
]
