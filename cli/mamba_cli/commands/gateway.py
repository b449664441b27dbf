"""`mambaserve gateway`: the OpenAI-compatible relay in front of engines.

The options of the command are the fields of `GatewaySettings`.
"""

from typing import Any

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.extras import install
from mamba_cli.settings_options import complaint, settings_command

SWITCH_SECONDS = 0.0005
"""Seconds after which a thread that reads a prompt lets the event loop go on, whose work is short and for
which all clients wait. The default of the interpreter, 0.005, is longer than most prompts take."""


def command() -> None:
    """Relay OpenAI requests to the engine expected to answer first; retry at another engine on failure."""


def run(options: dict[str, Any]) -> int:
    """Relay with the settings in `options` and return the exit code. Raises `CliError`."""
    import asyncio
    import sys

    import uvloop
    from pydantic import ValidationError

    from mamba_edge import process_memory
    from mamba_edge.listener import CannotListen, tell_ready
    from mamba_gateway.process.server import serve
    from mamba_gateway.settings import GatewaySettings
    from mamba_telemetry.logs import set_up_logs
    from mamba_telemetry.traces import set_up_traces

    try:
        settings = GatewaySettings(**options)
    except ValidationError as error:
        raise InvalidInput(complaint(error.errors(include_url=False))) from None
    set_up_logs(level=settings.log_level, process="gateway")
    tracing = set_up_traces(settings, process="mambaserve-gateway")

    def picker_ready(port: int) -> None:
        tell_ready(f"mambaserve endpoint picker ready at {settings.host} port {port}", sys.stderr)

    def ready(url: str) -> None:
        process_memory.freeze()
        tell_ready(f"mambaserve gateway ready at {url}", sys.stderr)

    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            serving = serve(settings, ready, picker_ready=picker_ready, tracing=tracing)
            return runner.run(process_memory.with_trimming(serving))
    except ModuleNotFoundError as error:
        if settings.endpoint_picker_port is None:
            raise
        missing = f"--endpoint-picker-port needs the extra 'endpoint-picker' ({error})"
        raise InvalidInput(f"{missing}: {install('gateway,endpoint-picker')}") from error
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    except CannotListen as error:
        raise RunFailed(f"{error.option}: {error}") from error
    except OSError as error:
        raise RunFailed(f"cannot serve at {settings.host}:{settings.port}: {error}") from error
    finally:
        tracing.close()


PANELS = {
    "Engines": (
        "backend",
        "deployment",
        "models_file",
        "namespace",
        "kubeconfig",
        "backend_key_file",
        "redis_url",
        "redis_url_file",
        "prefix_index_scope",
        "probe_interval",
        "probe_timeout",
    ),
    "HTTP": (
        "host",
        "port",
        "api_key_file",
        "cors_origin",
        "max_body_bytes",
        "max_held_body_bytes",
        "header_timeout",
        "body_timeout",
        "keep_alive_timeout",
        "read_nothing_timeout",
        "max_connections",
    ),
    "Admission": ("max_in_flight", "max_queue", "queue_timeout", "hold_timeout"),
    "Limits of keys": ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "key_limit"),
    "Ledger": (
        "usage_days",
        "usage_file",
        "usage_reader",
        "price_currency",
        "price_device_hour",
        "price_prompt_tokens",
        "price_resumed_tokens",
        "price_output_tokens",
    ),
    "Endpoint picker": (
        "endpoint_picker_port",
        "endpoint_picker_tls",
        "endpoint_picker_certificate",
        "endpoint_picker_key",
        "inference_pool",
    ),
    "Routing": ("prefix_weight", "load_weight", "hand_over_tokens"),
    "Traces": ("otlp_endpoint", "otlp_protocol", "trace_sampling", "slow_request"),
    "Relay": (
        "max_attempts",
        "connect_timeout",
        "silence_timeout",
        "idle_timeout",
        "request_timeout",
        "comment_interval",
    ),
    "Process": ("drain_timeout", "drain_quiet", "log_level"),
}
CLASS = settings_command("mamba_gateway.settings:GatewaySettings", run, panels=PANELS)
