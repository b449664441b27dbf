"""The option of `plan` and `up` that names a file with a cluster's own resource profiles."""

from pathlib import Path
from typing import Annotated

import typer

ProfilesOption = Annotated[
    Path | None,
    typer.Option(
        "--resource-profiles",
        envvar="MAMBASERVE_RESOURCE_PROFILES",
        help="YAML with resourceProfiles, such as the chart's values: a cluster's own profiles.",
    ),
]
