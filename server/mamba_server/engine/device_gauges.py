"""How far the kernels and graphs of a GPU are used, by the names of `EngineStats`."""

from collections.abc import Callable

from mamba_kernels.dispatch.backend import Backend
from mamba_server.engine.execution.runner import ModelRunner

Gauges = Callable[[], dict[str, float]]


def device_gauges(runner: ModelRunner, backend: Backend) -> Gauges:
    """Numbers of an engine that has started; nothing where no kernel is left out and no step is prepared."""

    def gauges() -> dict[str, float]:
        found = {
            f"decode_steps{{kind={kind}}}": float(count) for kind, count in runner.decode_step_counts.items()
        }
        for name, cause in backend.operators.left_out.items():
            found[f"kernels_left_out{{operator={name},cause={cause}}}"] = 1.0
        return found

    return gauges
