"""How far the kernels and graphs of a GPU are used, by the names of `EngineStats`."""

from collections.abc import Callable

from mamba_kernels.dispatch.backend import Backend
from mamba_server.engine.runner import ModelRunner

Gauges = Callable[[], dict[str, float]]


def device_gauges(runner: ModelRunner, backend: Backend) -> Gauges:
    """Numbers of an engine that has started; nothing where no kernel is left out and no step is prepared."""

    def gauges() -> dict[str, float]:
        steps = {
            f"decode_steps{{kind={kind}}}": float(count) for kind, count in runner.decode_step_counts.items()
        }
        left_out = backend.operators.left_out.items()
        return steps | {f"kernels_left_out{{operator={name},cause={cause}}}": 1.0 for name, cause in left_out}

    return gauges
