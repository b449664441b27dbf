"""`mambaserve gateway`: the OpenAI-compatible relay in front of one or more engines."""

from typing import Annotated, Any

import typer

from mamba_cli.errors import InvalidInput, RunFailed


def command(
    backend: Annotated[
        list[str] | None,
        typer.Option(envvar="MAMBASERVE_BACKEND", metavar="URL", help="Base URL of an engine (repeatable)."),
    ] = None,
    deployment: Annotated[
        str | None,
        typer.Option(envvar="MAMBASERVE_DEPLOYMENT", help="MambaDeployment whose engines are watched."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(envvar="MAMBASERVE_NAMESPACE", help="Its namespace; none = the current one."),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(envvar="MAMBASERVE_KUBECONFIG", help="Kubeconfig; none = in-cluster, then the default."),
    ] = None,
    host: Annotated[str, typer.Option(envvar="MAMBASERVE_HOST", help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="MAMBASERVE_PORT", help="Port; 0 takes a free one.")] = 8000,
    redis_url: Annotated[
        str | None, typer.Option(envvar="MAMBASERVE_REDIS_URL", help="Redis of the shared prefix index.")
    ] = None,
    api_key_file: Annotated[
        str | None,
        typer.Option(envvar="MAMBASERVE_API_KEY_FILE", help="Accepted API keys, one a line."),
    ] = None,
    max_in_flight: Annotated[
        int, typer.Option(envvar="MAMBASERVE_MAX_IN_FLIGHT", help="Most requests relayed at once.")
    ] = 1024,
    max_queue: Annotated[
        int, typer.Option(envvar="MAMBASERVE_MAX_QUEUE", help="Most requests waiting; beyond it 429.")
    ] = 1024,
    hold_timeout: Annotated[
        float,
        typer.Option(envvar="MAMBASERVE_HOLD_TIMEOUT", help="Seconds to wait for an engine before 503."),
    ] = 10.0,
    max_attempts: Annotated[
        int, typer.Option(envvar="MAMBASERVE_MAX_ATTEMPTS", help="Most engines tried for one request.")
    ] = 3,
    max_body_bytes: Annotated[
        str, typer.Option(envvar="MAMBASERVE_MAX_BODY_BYTES", help="Largest request body, e.g. 32MiB.")
    ] = "32MiB",
    drain_timeout: Annotated[
        float,
        typer.Option(envvar="MAMBASERVE_DRAIN_TIMEOUT", help="Seconds running requests get after SIGTERM."),
    ] = 300.0,
    log_level: Annotated[
        str, typer.Option(envvar="MAMBASERVE_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Relay OpenAI requests to the least loaded engine; streams pass through, failures go elsewhere."""
    given: dict[str, Any] = {**locals(), "backend": tuple(backend or ())}
    import asyncio
    import sys

    import uvloop
    from pydantic import ValidationError

    from mamba_gateway.server import serve
    from mamba_gateway.settings import GatewaySettings
    from mamba_telemetry.logs import set_up_logs

    try:
        settings = GatewaySettings(**given)
    except ValidationError as error:
        raise InvalidInput(_explain(error)) from None
    set_up_logs(level=settings.log_level, process="gateway")

    def ready(url: str) -> None:
        print(f"mambaserve gateway ready at {url}", file=sys.stderr, flush=True)  # noqa: T201

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(serve(settings, ready))
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    except OSError as error:
        if error.filename is not None and str(error.filename) == settings.api_key_file:
            raise RunFailed(f"--api-key-file: {settings.api_key_file}: {error.strerror}") from error
        raise RunFailed(f"cannot serve at {settings.host}:{settings.port}: {error}") from error
    raise typer.Exit(code)


def _explain(error: Any) -> str:
    lines = []
    for item in error.errors():
        where = "".join(f"--{str(part).replace('_', '-')}: " for part in item["loc"][:1])
        lines.append(where + item["msg"].removeprefix("Value error, "))
    return "; ".join(lines)
