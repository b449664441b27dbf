"""`spec.engine`: how each engine runs the model."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mamba_api.names import IMAGE
from mamba_api.v1alpha1.base import ApiModel, FreeForm, Rule


class EnvVar(ApiModel):
    """One environment variable, as in a Kubernetes container."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """Value of the variable."""
    value_from: FreeForm | None = None
    """Source of the value (secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef), as in a container."""

    rules = (
        Rule(
            cel="!(has(self.value) && has(self.valueFrom))",
            message="an environment variable has either value or valueFrom: remove one",
            holds=lambda self: self.value is None or self.value_from is None,
        ),
    )


def _each_once(env: list[EnvVar]) -> list[EnvVar]:
    """What `x-kubernetes-list-type: map` says to the API server."""
    seen = [variable.name for variable in env]
    twice = next((name for name in seen if seen.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice: remove one")
    return env


class Engine(ApiModel):
    """Settings of every engine of the deployment."""

    image: Annotated[str, Field(min_length=1, max_length=512)] = IMAGE
    """Container image of the engine."""
    dtype: Literal["Auto", "float32", "bfloat16", "float16"] = "Auto"
    """Type of weights and activations; Auto = the checkpoint's."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs one engine spreads the model over; at most spec.resources.gpus."""
    page_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Tokens per page of attention KV."""
    chunked_prefill_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 2048
    """Token budget of one step: longer prompts are prefilled in chunks, so that others keep decoding."""
    max_running_requests: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most sequences that run at once; absent = what the plan allows."""
    overlap_schedule: bool = True
    """Plan step n+1 on the CPU while the device runs step n."""
    batch_invariant: bool = False
    """Make a token's logits independent of the batch it runs in (slower)."""
    extra_args: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=64)] = []
    """More arguments of `mambaserve serve`, after all others."""
    env: Annotated[
        list[EnvVar],
        Field(
            max_length=128,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
        AfterValidator(_each_once),
    ] = []
    """More environment variables of the engine container."""
