"""`mambaserve serve`: one engine in the foreground.

The options of the command are the fields of `EngineSettings`.
"""

from typing import TYPE_CHECKING, Any

from mamba_cli.errors import CliError, InvalidInput
from mamba_cli.extras import SERVER, need
from mamba_cli.model_argument import model_uri
from mamba_cli.settings_options import complaint, settings_command

if TYPE_CHECKING:
    from mamba_settings.engine_settings import EngineSettings

PANELS = {
    "Common": (
        "model", "served_model_name", "host", "port", "api_key_file", "max_model_len", "device", "dtype",
        "quantization", "strategy",
    ),
}  # fmt: skip
"""Options that stand first in the help, before the groups of all others."""


def command() -> None:
    """Serve one model over HTTP; Ctrl-C or SIGTERM drains, then ends."""


def run(options: dict[str, Any]) -> int:
    """Serve with the settings in `options` and return the exit code. Raises `CliError`."""
    from pydantic import ValidationError

    from mamba_settings.engine_settings import EngineSettings

    if not options.get("model"):
        raise InvalidInput(
            "no model is named: give a directory, OWNER/NAME of the Hub or builtin://tiny-recall, which "
            "ships with mambaserve (MAMBASERVE_MODEL)"
        )
    try:
        settings = EngineSettings(**{**options, "model": model_uri(str(options["model"]))})
    except ValidationError as error:
        raise InvalidInput(complaint(error.errors(include_url=False))) from error
    need(*SERVER)
    _check(settings)
    # The server is imported last, because its import takes seconds.
    from rich.console import Console

    from mamba_cli.local.loading.loading_progress import LoadingProgress
    from mamba_server.api.requests.errors import ServeError
    from mamba_server.api.server import serve

    progress = LoadingProgress(
        settings.served_model_name or _display_name(settings.model), Console(stderr=True)
    )
    try:
        return serve(settings, watch=progress)
    except ServeError as error:
        failure = CliError(str(error))
        failure.exit_code = error.exit_code
        raise failure from error
    finally:
        progress.close()


def _check(settings: "EngineSettings") -> None:
    # The engine process repeats these checks, but only after it has imported torch.
    from mamba_planner.constraints import Constraints
    from mamba_planner.errors import UnusableInput
    from mamba_server.model.checkpoint.errors import ModelError
    from mamba_server.model.checkpoint.source import check

    try:
        Constraints.of(settings)
        check(settings.model)
        if settings.draft_model is not None:
            check(settings.draft_model)
    except (UnusableInput, ModelError) as error:
        raise InvalidInput(str(error)) from error


def _display_name(uri: str) -> str:
    from mamba_server.model.checkpoint.errors import ModelError
    from mamba_server.model.checkpoint.source import display_name

    try:
        return display_name(uri)
    except ModelError:
        return uri


CLASS = settings_command(
    "mamba_settings.engine_settings:EngineSettings", run, panels=PANELS, positional="model", file=True
)
