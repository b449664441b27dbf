"""`read_manifests`: objects of KServe, KubeAI and llm-d, and Deployments that run vLLM or SGLang."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from mamba_cli.migration.command_line import is_command, read_arguments, read_command
from mamba_cli.migration.migrated import Migrated, model_of

_GPU = re.compile(r"(?:^|/)gpu$")
_PROFILE = re.compile(r"(nvidia-gpu-[\w-]+?):(\d+)")


def read_manifests(text: str) -> list[Migrated]:
    """Return what each known object becomes; objects of other kinds are skipped.

    Raises `InvalidInput` for a known object without a model.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if isinstance(document, dict)]
    except yaml.YAMLError:
        return []
    objects: list[Migrated] = []
    for document in documents:
        reader = _READERS.get(
            (str(document.get("apiVersion", "")).partition("/")[0], document.get("kind", ""))
        )
        if reader is not None and (migrated := reader(document)) is not None:
            migrated.name = str((document.get("metadata") or {}).get("name") or "")
            objects.append(migrated)
    return objects


def _kubeai(document: Mapping[str, Any]) -> Migrated:
    """Read a Model of KubeAI."""
    spec = document.get("spec") or {}
    migrated = Migrated("vLLM")
    model_of(migrated, "spec.url", str(spec.get("url", "")))
    read_arguments(migrated, [str(argument) for argument in spec.get("args") or ()])
    engine = str(spec.get("engine", "VLLM"))
    if engine not in ("VLLM", ""):
        migrated.leave_out(f"spec.engine {engine}", "only the arguments of vLLM are read")
    for field, path in (("minReplicas", "scaling.minReplicas"), ("maxReplicas", "scaling.maxReplicas")):
        if spec.get(field) is not None:
            migrated.put(f"spec.{field}", path, spec[field])
    if spec.get("replicas") is not None:
        migrated.put("spec.replicas", "replicas", spec["replicas"])
    if profile := _PROFILE.fullmatch(str(spec.get("resourceProfile", ""))):
        migrated.leave_out(
            f"spec.resourceProfile {profile[0]}", "name a profile of this operator in spec.resources.profile"
        )
    if spec.get("adapters"):
        migrated.leave_out("spec.adapters", "list them in spec.model.adapters, each with name and uri")
    return migrated


def _inference_service(document: Mapping[str, Any]) -> Migrated | None:
    """Read an InferenceService of KServe.

    The result is None if its predictor is no language model that vLLM or SGLang serves.
    """
    predictor = (document.get("spec") or {}).get("predictor") or {}
    model = predictor.get("model") or {}
    if not model:
        return _first_container(predictor.get("containers"))
    if str((model.get("modelFormat") or {}).get("name", "")) not in ("huggingface", "vllm"):
        return None
    migrated = Migrated("vLLM")
    if uri := str(model.get("storageUri") or ""):
        model_of(migrated, "storageUri", uri)
    read_arguments(migrated, [_kserve(str(argument)) for argument in model.get("args") or ()])
    _replica_bounds(migrated, predictor)
    _resources(migrated, model)
    return migrated


def _kserve(argument: str) -> str:
    """Return the argument of KServe's runtime in the words of vLLM."""
    argument = re.sub(r"^--model_id\b", "--model", argument)
    return re.sub(r"^--model_name\b", "--served-model-name", argument)


def _llm_inference_service(document: Mapping[str, Any]) -> Migrated:
    """Read an LLMInferenceService of KServe, which llm-d uses, too."""
    spec = document.get("spec") or {}
    migrated = Migrated("vLLM")
    model = spec.get("model") or {}
    model_of(migrated, "spec.model.uri", str(model.get("uri", "")))
    if model.get("name"):
        migrated.put("spec.model.name", "model.servedName", model["name"])
    containers = (spec.get("template") or {}).get("containers") or ()
    arguments = [str(argument) for container in containers for argument in container.get("args") or ()]
    read_arguments(migrated, [word for word in arguments if not word.startswith("/")])
    _pools(migrated, spec)
    if "router" in spec:
        migrated.leave_out("spec.router", "the gateway of the object routes by resumable prefix")
    for container in containers:
        _resources(migrated, container)
    return migrated


def _pools(migrated: Migrated, spec: Mapping[str, Any]) -> None:
    """Take the replicas of an LLMInferenceService, which has two pools if it has a prefill part."""
    if "prefill" not in spec:
        if spec.get("replicas") is not None:
            migrated.put("spec.replicas", "replicas", spec["replicas"])
        return
    pools: dict[str, Any] = {"prefill": {}, "decode": {}}
    for name, part in (("prefill", spec["prefill"] or {}), ("decode", spec)):
        if part.get("replicas") is not None:
            pools[name]["replicas"] = part["replicas"]
    migrated.put("spec.prefill", "disaggregation", pools)


def _workload(document: Mapping[str, Any]) -> Migrated | None:
    """Read a Deployment, StatefulSet or Pod.

    The result is None if no container runs vLLM or SGLang.
    """
    spec = document.get("spec") or {}
    migrated = _first_container(((spec.get("template") or {}).get("spec") or spec).get("containers"))
    if migrated is not None and spec.get("replicas") is not None:
        migrated.put("spec.replicas", "replicas", spec["replicas"])
    return migrated


def _first_container(containers: Any) -> Migrated | None:
    for container in containers or ():
        command = " ".join(_quoted(container))
        image = str(container.get("image", ""))
        if "vllm" in image and not is_command(command):
            # The image's entrypoint is the server, and the arguments stand alone.
            command = f"vllm serve {command}"
        if is_command(command):
            migrated = read_command(command)
            _resources(migrated, container)
            return migrated
    return None


def _quoted(container: Mapping[str, Any]) -> Iterator[str]:
    words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    shell = len(words) > 1 and words[0].rpartition("/")[2] in ("sh", "bash")
    for word in words[-1:] if shell else words:
        yield word.removeprefix("exec ") if shell else f"'{word}'"


def _replica_bounds(migrated: Migrated, predictor: Mapping[str, Any]) -> None:
    for field in ("minReplicas", "maxReplicas"):
        if predictor.get(field) is not None:
            migrated.put(f"predictor.{field}", f"scaling.{field}", predictor[field])


def _resources(migrated: Migrated, container: Mapping[str, Any]) -> None:
    limits = (container.get("resources") or {}).get("limits") or {}
    for name, amount in limits.items():
        if _GPU.search(name) and str(amount).isdigit() and int(amount) > 1:
            migrated.leave_out(f"{name}: {amount}", "this version runs an engine on one GPU")


_READERS = {
    ("kubeai.org", "Model"): _kubeai,
    ("serving.kserve.io", "InferenceService"): _inference_service,
    ("serving.kserve.io", "LLMInferenceService"): _llm_inference_service,
    ("apps", "Deployment"): _workload,
    ("apps", "StatefulSet"): _workload,
    ("v1", "Pod"): _workload,
}
