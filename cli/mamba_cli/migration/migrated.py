"""`Migrated`: the MambaDeployment that does what another server's command line or object does."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mamba_api import names


@dataclass(slots=True)
class Migrated:
    """Collects the fields of a new MambaDeployment, and what became of each argument of the other server."""

    server: str
    """Name of the other server, such as `vLLM`."""
    name: str = ""
    """Name of the object; empty = from the model."""
    spec: dict[str, Any] = field(default_factory=dict)
    replaced: list[tuple[str, str]] = field(default_factory=list)
    """Arguments that a field replaces, and the fields."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Arguments that no field replaces, and the reasons."""

    def put(self, argument: str, path: str, value: Any) -> None:
        """Set the field at `path`, such as `engine.dtype`, because of an argument."""
        *above, last = path.split(".")
        place = self.spec
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
        self.replaced.append((argument, f"spec.{path}: {value}"))

    def leave_out(self, argument: str, reason: str) -> None:
        """Note that nothing replaces an argument."""
        self.left_out.append((argument, reason))

    def manifest(self) -> dict[str, Any]:
        """Return the object."""
        uri = str(self.spec.get("model", {}).get("uri", ""))
        name = self.name or object_name(uri)
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": self.spec,
        }


Take = Callable[[Migrated, str, str], None]
"""Handles one argument: receives the object, the argument as written, and its value."""


def field_of(path: str, convert: Callable[[str], Any] = str) -> Take:
    """Return the handler that sets a field to the converted value."""

    def take(migrated: Migrated, argument: str, value: str) -> None:
        if not value:
            migrated.leave_out(argument, "it has no value, so the default holds")
            return
        try:
            migrated.put(argument, path, convert(value))
        except ValueError as error:
            migrated.leave_out(argument, str(error))

    return take


def switch(path: str, position: Any) -> Take:
    """Return the handler of an argument without a value, which sets a field to `position`."""
    return lambda migrated, argument, _value: migrated.put(argument, path, position)


def without(reason: str) -> Take:
    """Return the handler that leaves an argument out for a reason."""
    return lambda migrated, argument, _value: migrated.leave_out(argument, reason)


def model_of(migrated: Migrated, argument: str, value: str) -> None:
    """Set the model: a URI, a directory, or OWNER/NAME of the Hub."""
    uri = value
    if "://" not in value and value.startswith(("/", ".", "~")):
        uri = f"file://{value}"
    elif "://" not in value:
        # A name of the Hub has one slash at most, so others are paths.
        uri = f"hf://{value}" if value.count("/") < 2 else f"file://./{value}"
    migrated.put(argument, "model.uri", uri)


def revision(migrated: Migrated, argument: str, value: str) -> None:
    """Add the revision to the URI of a model on the Hub."""
    uri = str(migrated.spec.get("model", {}).get("uri", ""))
    if uri.startswith("hf://") and "@" not in uri:
        migrated.put(argument, "model.uri", f"{uri}@{value}")
    else:
        migrated.leave_out(argument, "only a model on the Hub has revisions")


def dtype(value: str) -> str:
    """Return a type of numbers as the MambaDeployment names it. Raises ValueError."""
    types = {"auto": "Auto", "half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}
    types |= {name: name for name in ("float16", "bfloat16", "float32")}
    if value.lower() not in types:
        raise ValueError(f"the type {value} is not one of {', '.join(sorted(set(types.values())))}")
    return types[value.lower()]


def state_dtype(value: str) -> str:
    """Return the type of the recurrent states as the MambaDeployment names it. Raises ValueError."""
    converted = dtype(value)
    if converted == "bfloat16":
        raise ValueError("states in bfloat16 lose too much: choose float32 or float16")
    return converted


def kv_cache_dtype(value: str) -> str:
    """Return the type of keys and values as the MambaDeployment names it. Raises ValueError."""
    types = {"auto": "Auto", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3"}
    if value.lower() not in types:
        raise ValueError(f"pages in {value} are not in this version: choose Auto or fp8_e4m3")
    return types[value.lower()]


def tokens(value: str) -> int:
    """Return a number of tokens, such as 8192, 8k (8,000) or 8K (8,192). Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", value)
    if match is None:
        raise ValueError(f"{value} is no number of tokens, so the default holds")
    return int(float(match[1]) * {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}[match[2]])


def whole_number(value: str) -> int:
    """Return a whole number. Raises ValueError."""
    if not re.fullmatch(r"-?\d{1,18}", value):
        raise ValueError(f"{value} is no whole number, so the default holds")
    return int(value)


def share(value: str) -> float:
    """Return a share of the memory. Raises ValueError."""
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{value} is no number, so the default holds") from None


def first_name(migrated: Migrated, argument: str, value: str) -> None:
    """Take the first name of the served model; the others have no field here."""
    first, *others = value.split() or [""]
    if not first:
        migrated.leave_out(argument, "it has no value, so the model's own name is served")
        return
    migrated.put(argument, "model.servedName", first)
    if others:
        migrated.leave_out(
            f"{argument.split()[0]} {' '.join(others)}",
            "one name is served; further names are aliases of a MambaGateway",
        )


def one_gpu(migrated: Migrated, argument: str, value: str) -> None:
    """Record that an argument for several GPUs is left out: an engine uses one GPU."""
    if value.strip() not in ("", "1"):
        migrated.leave_out(
            argument,
            "this version runs an engine on one GPU: the plan says whether the model fits one; for more "
            "traffic set spec.replicas",
        )


def replicas(migrated: Migrated, argument: str, value: str) -> None:
    """Turn the number of copies behind one address into `spec.replicas`."""
    if value.isdigit() and int(value) > 1:
        migrated.put(argument, "replicas", int(value))


def object_name(uri: str) -> str:
    """Return a name for the object of a model."""
    last = uri.rstrip("/").rpartition("/")[2].partition("@")[0]
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:40].strip("-") or "model"
