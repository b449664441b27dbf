"""`mambaserve run`: serves a model and talks to it, in one command."""

from typing import TYPE_CHECKING, Annotated

import typer

from mamba_cli.chat.talk_options import MaxTokensOption, SystemOption, TemperatureOption

if TYPE_CHECKING:
    from mamba_cli.local.loading.readiness import EngineReadiness


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            envvar="MAMBASERVE_MODEL",
            help="Model directory, OWNER/NAME of the Hub, or builtin://tiny-recall, which ships with "
            "mambaserve.",
        ),
    ],
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="[MESSAGE]",
            envvar="MAMBASERVE_RUN_MESSAGE",
            help="One message, after whose answer the command ends. Without it, run starts a conversation, "
            "or reads the message from standard input where that is not a terminal.",
            show_default=False,
        ),
    ] = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = None,
) -> None:
    """Serve a model on this machine and talk to it; the model is unloaded at the end.

    The engine takes the settings of `mambaserve serve` from its environment variables.
    """
    from rich.console import Console

    from mamba_cli.chat.talk import TalkOptions, first_message, talk_to
    from mamba_cli.extras import SERVER, need
    from mamba_cli.local.loading.loading_view import LoadingView
    from mamba_cli.local.own_engine import own_engine
    from mamba_cli.model_argument import model_uri

    need(*SERVER)
    words, view = first_message(message), LoadingView(Console(stderr=True))
    uri = model_uri(model)

    def show(readiness: "EngineReadiness | None") -> None:
        view.show(uri, readiness)
        if readiness is not None and readiness.ready:
            view.close()

    try:
        with own_engine(uri, {}, show) as engine:
            options = TalkOptions(
                api_key=engine.api_key, system=system, max_tokens=max_tokens, temperature=temperature
            )
            talk_to(engine.url, words, options)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        view.close()
