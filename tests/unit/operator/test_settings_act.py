"""Each setting of a process, and so each option and environment variable, is read somewhere in its code."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

from pydantic import BaseModel

from mamba_gateway.settings import GatewaySettings
from mamba_operator.process.settings import OperatorSettings
from mamba_settings.engine_settings import EngineSettings

CODE: dict[type[BaseModel], tuple[str, ...]] = {
    OperatorSettings: ("mamba_operator", "mamba_cli.commands"),
    GatewaySettings: ("mamba_gateway", "mamba_cli.commands", "mamba_edge", "mamba_telemetry"),
    EngineSettings: ("mamba_server", "mamba_planner", "mamba_edge", "mamba_telemetry"),
}
READ_AS: dict[tuple[type[BaseModel], str], str] = {
    (GatewaySettings, "prefix_index_scope"): "index_scope",
    (GatewaySettings, "key_limit"): "key_limits",
    (EngineSettings, "step_time"): "step_time_asked",
    (EngineSettings, "max_loras"): "lora_places",
    **{
        (GatewaySettings, name): "prices"
        for name in GatewaySettings.model_fields
        if name.startswith("price_") or name == "model_price"
    },
    **{
        (EngineSettings, name): "workload"
        for name in EngineSettings.model_fields
        if name.startswith("workload_")
    },
}
"""Settings that are read together, or with another's help, under another name."""
CASES = [(kind, name) for kind in CODE for name in kind.model_fields]


@cache
def read(kind: type[BaseModel]) -> frozenset[str]:
    """Return the names of all attributes that the process's packages read, its settings module left out."""
    return frozenset(
        node.attr
        for package in CODE[kind]
        for folder in import_module(package).__path__
        for path in Path(folder).rglob("*.py")
        if "settings" not in path.stem
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def test_a_setting_is_read() -> None:
    assert [(kind, name) for kind, name in CASES if READ_AS.get((kind, name), name) not in read(kind)] == []
