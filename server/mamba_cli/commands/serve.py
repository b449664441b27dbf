"""`mambaserve serve`: one engine in the foreground. Turns options into EngineSettings and exit codes."""

from typing import Annotated, Any, Literal

import typer

from mamba_cli.errors import CliError, InvalidInput

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
StateDtype = Literal["auto", "float32", "float16"]
Device = Literal["auto", "cpu", "cuda"]
Strategy = Literal["Auto", "NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]
Eviction = Literal["RecomputeCost", "LRU"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _option(name: str, text: str, **more: Any) -> Any:
    variable = f"MAMBASERVE_{name.partition('/')[0].removeprefix('--').replace('-', '_').upper()}"
    # The settings model reads the variable itself: naming it here is for --help.
    return typer.Option(name, help=f"{text} [env: {variable}]", show_default=False, **more)


def command(
    model: Annotated[
        str | None, _option("--model", "Directory or URI: file://, hf://owner/name, pvc://, builtin://")
    ] = None,
    host: Annotated[str | None, _option("--host", "Address to bind; default 127.0.0.1")] = None,
    port: Annotated[int | None, _option("--port", "Port; default 8000, 0 = a free one")] = None,
    admin_host: Annotated[str | None, _option("--admin-host", "Address of the admin server")] = None,
    admin_port: Annotated[int | None, _option("--admin-port", "Its port; default port + 1")] = None,
    served_model_name: Annotated[
        str | None, _option("--served-model-name", "Name in the API; default the last part of --model")
    ] = None,
    dtype: Annotated[Dtype | None, _option("--dtype", "Type of weights and activations")] = None,
    device: Annotated[Device | None, _option("--device", "Where the model runs")] = None,
    strategy: Annotated[Strategy | None, _option("--strategy", "State cache strategy")] = None,
    state_dtype: Annotated[StateDtype | None, _option("--state-dtype", "Type of the SSM state")] = None,
    track_interval: Annotated[
        int | None, _option("--track-interval", "Most tokens between checkpoints while decoding; default 256")
    ] = None,
    page_size: Annotated[int | None, _option("--page-size", "Tokens per attention KV page")] = None,
    max_model_len: Annotated[int | None, _option("--max-model-len", "Longest prompt plus output")] = None,
    max_running_requests: Annotated[
        int | None, _option("--max-running-requests", "Most sequences running at once")
    ] = None,
    chunked_prefill_tokens: Annotated[
        int | None, _option("--chunked-prefill-tokens", "Token budget of one step; default 2048")
    ] = None,
    arena_bytes: Annotated[
        str | None, _option("--arena-bytes", "Size of the state and KV arena, for example 2Gi")
    ] = None,
    utilization: Annotated[
        float | None, _option("--utilization", "Share of the device memory to take; default 0.9")
    ] = None,
    device_memory: Annotated[
        str | None, _option("--device-memory", "Device memory to plan for, for example 80Gi")
    ] = None,
    eviction: Annotated[
        Eviction | None, _option("--eviction", "Which checkpoint goes first when memory is short")
    ] = None,
    max_checkpoints_per_path: Annotated[
        int | None, _option("--max-checkpoints-per-path", "Most checkpoints along one path of the tree")
    ] = None,
    prefix_caching: Annotated[
        bool | None, _option("--prefix-caching/--no-prefix-caching", "Reuse checkpoints between requests")
    ] = None,
    overlap: Annotated[
        bool | None, _option("--overlap/--no-overlap", "Plan the next step while the device runs")
    ] = None,
    batch_invariant: Annotated[
        bool | None,
        _option("--batch-invariant/--no-batch-invariant", "Logits independent of the batch (slower)"),
    ] = None,
    api_key_file: Annotated[
        str | None, _option("--api-key-file", "File with one accepted API key a line")
    ] = None,
    admin_token_file: Annotated[
        str | None, _option("--admin-token-file", "File with the token that admin calls must carry")
    ] = None,
    max_waiting_requests: Annotated[
        int | None, _option("--max-waiting-requests", "Most waiting prompts; more get 429. Default 512")
    ] = None,
    max_body_bytes: Annotated[
        str | None, _option("--max-body-bytes", "Largest request body; default 32Mi")
    ] = None,
    drain_timeout: Annotated[
        float | None, _option("--drain-timeout", "Seconds to finish running requests; default 120")
    ] = None,
    engine_silence: Annotated[
        float | None, _option("--engine-silence", "Seconds after which a silent engine is replaced")
    ] = None,
    seed: Annotated[int | None, _option("--seed", "Seed of requests that bring none")] = None,
    log_level: Annotated[LogLevel | None, _option("--log-level", "Least severe message logged")] = None,
) -> None:
    """Serve one model over HTTP until Ctrl-C or SIGTERM, which drain first."""
    given = {name: value for name, value in locals().items() if value is not None}
    raise typer.Exit(run(given))


def run(given: dict[str, Any]) -> int:
    """Serve with these settings over those of the environment; the exit code. Raises CliError."""
    from pydantic import ValidationError

    from mamba_planner.engine_settings import EngineSettings
    from mamba_server.api.errors import ServeError
    from mamba_server.api.server import serve

    try:
        settings = EngineSettings(**given)
    except ValidationError as error:
        raise InvalidInput(_complaint(error.errors(include_url=False))) from error
    try:
        return serve(settings)
    except ServeError as error:
        failure = CliError(str(error))
        failure.exit_code = error.exit_code
        raise failure from error


def _complaint(errors: Any) -> str:
    """One line an option that is wrong."""
    lines = []
    for item in errors:
        name = str(item["loc"][0]) if item["loc"] else "settings"
        option = f"--{name.replace('_', '-')}"
        text = (
            "is required" if item["type"] == "missing" else item["msg"].replace("Input should be", "must be")
        )
        lines.append(f"{option} (MAMBASERVE_{name.upper()}): {text}")
    return "\n".join(lines)
