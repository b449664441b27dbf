"""`read_manifests`: objects of KServe, KubeAI and llm-d, and Deployments that run vLLM or SGLang."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from mamba_cli.errors import InvalidInput
from mamba_cli.migration.command_line import arguments_in, is_command, read_arguments, read_command
from mamba_cli.migration.migrated import Migrated, model_of, one_gpu

_GPU = re.compile(r"(?:^|/)gpu$")
_PART_OF_GPU = re.compile(r"/(mig-|gpu-?mem|gpu-?cores|gpu\.shared|vgpu)")
_PROFILE = re.compile(r"(nvidia-gpu-[\w-]+?):(\d+)")


def read_manifests(text: str) -> list[Migrated]:
    """Return the object that replaces each known object; objects of other kinds are skipped.

    Raises `InvalidInput` for a known object without a model.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if isinstance(document, dict)]
    except yaml.YAMLError:
        return []
    objects: list[Migrated] = []
    for document in _items(documents):
        api = str(document.get("apiVersion", "")).partition("/")[0]
        reader = _READERS.get((api, str(document.get("kind", ""))))
        if reader is None and "modelArtifacts" in document:
            reader = _chart_values
        if reader is None:
            continue
        try:
            name = str(_part(document, "metadata").get("name") or "")
            migrated = reader(document)
        except InvalidInput as error:
            raise InvalidInput(f"{document.get('kind', 'the values')}: {error}") from error
        if migrated is not None:
            migrated.name = name
            objects.append(migrated)
    return objects


def _items(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the objects, those of a List one by one."""
    for document in documents:
        if document.get("kind") == "List" and isinstance(document.get("items"), list):
            yield from (item for item in document["items"] if isinstance(item, dict))
        else:
            yield document


def _part(document: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return the object at a path; empty if there is none.

    Raises `InvalidInput` if something else is there.
    """
    place: Any = document
    for number, name in enumerate(path):
        place = place.get(name)
        if place is None:
            return {}
        if not isinstance(place, Mapping):
            raise InvalidInput(f"{'.'.join(path[: number + 1])} must be an object, is {str(place)[:60]!r}")
    return place  # type: ignore[no-any-return]


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the containers of a pod's or pool's spec. Raises `InvalidInput`."""
    containers = spec.get("containers") or []
    if not isinstance(containers, list) or not all(isinstance(one, Mapping) for one in containers):
        raise InvalidInput(f"containers must be a list of objects, is {str(containers)[:60]!r}")
    return containers


def _arguments(container: Mapping[str, Any], field: str = "args") -> list[str]:
    """Return the arguments in a field of a container. Raises `InvalidInput` if the field is no list."""
    words = container.get(field) or []
    if not isinstance(words, list):
        raise InvalidInput(f"{field} must be a list with one argument in each item, is {str(words)[:60]!r}")
    return [str(word) for word in words]


def _kubeai(document: Mapping[str, Any]) -> Migrated:
    """Read a Model of KubeAI."""
    spec = _part(document, "spec")
    migrated = Migrated("vLLM")
    if spec.get("url"):
        model_of(migrated, "spec.url", str(spec["url"]))
    read_arguments(migrated, _arguments(spec))
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
    predictor = _part(document, "spec", "predictor")
    model = _part(predictor, "model")
    if not model:
        return _first_container(predictor)
    if str(_part(model, "modelFormat").get("name", "")).lower() not in ("huggingface", "vllm"):
        return None
    migrated = Migrated("vLLM")
    if uri := str(model.get("storageUri") or ""):
        model_of(migrated, "storageUri", uri)
    read_arguments(migrated, [_kserve(argument) for argument in _arguments(model)])
    _replica_bounds(migrated, predictor)
    _resources(migrated, model)
    return migrated


def _kserve(argument: str) -> str:
    """Return an argument of KServe's runtime under the name that vLLM has for it."""
    argument = re.sub(r"^--model_id\b", "--model", argument)
    return re.sub(r"^--model_name\b", "--served-model-name", argument)


def _llm_inference_service(document: Mapping[str, Any]) -> Migrated:
    """Read an LLMInferenceService of KServe, which llm-d uses, too."""
    spec = _part(document, "spec")
    migrated = Migrated("vLLM")
    model = _part(spec, "model")
    if model.get("uri"):
        model_of(migrated, "spec.model.uri", str(model["uri"]))
    if model.get("name"):
        migrated.put("spec.model.name", "model.servedName", model["name"])
    containers = _containers(_part(spec, "template"))
    _server_arguments(migrated, containers)
    _pools(migrated, "spec", spec, spec.get("prefill"))
    _parallelism(migrated, "spec", spec)
    if "router" in spec:
        migrated.leave_out("spec.router", "the gateway of the object routes by resumable prefix")
    for container in containers:
        _resources(migrated, container)
    return migrated


def _chart_values(document: Mapping[str, Any]) -> Migrated:
    """Read the values of llm-d's chart for model services."""
    migrated = Migrated("vLLM")
    artifacts, decode = _part(document, "modelArtifacts"), _part(document, "decode")
    if artifacts.get("uri"):
        model_of(migrated, "modelArtifacts.uri", str(artifacts["uri"]))
    if artifacts.get("name"):
        migrated.put("modelArtifacts.name", "model.servedName", artifacts["name"])
    containers = _containers(decode)
    _server_arguments(migrated, containers)
    prefill = document.get("prefill")
    if isinstance(prefill, Mapping) and (prefill.get("create") is False or prefill.get("replicas") == 0):
        prefill = None
    _pools(migrated, "decode", decode, prefill)
    _parallelism(migrated, "decode", decode)
    for container in containers:
        _resources(migrated, container)
    if "routing" in document:
        migrated.leave_out("routing", "the gateway of the object routes by resumable prefix")
    return migrated


def _server_arguments(migrated: Migrated, containers: list[Mapping[str, Any]]) -> None:
    """Read the arguments of the server, which stand in containers alone or behind its command."""
    arguments: list[str] = []
    for container in containers:
        own = arguments_in(" ".join(_quoted(container)))
        # The model of the object is mounted, so the path behind the command names no other one.
        skipped = own[1:] if own and not own[0].startswith("-") else own
        arguments += _arguments(container) if skipped is None else skipped
    read_arguments(migrated, arguments)


def _pools(migrated: Migrated, path: str, decode: Mapping[str, Any], prefill: Any) -> None:
    """Set the replicas of the object from `decode`, or of both pools if there is a prefill part."""
    if prefill is None:
        if decode.get("replicas") is not None:
            migrated.put(f"{path}.replicas", "replicas", decode["replicas"])
        return
    pools: dict[str, Any] = {"prefill": {}, "decode": {}}
    for name, part in (("prefill", _part({"prefill": prefill}, "prefill")), ("decode", decode)):
        if part.get("replicas") is not None:
            pools[name]["replicas"] = part["replicas"]
    migrated.put("prefill", "disaggregation", pools)


def _parallelism(migrated: Migrated, path: str, part: Mapping[str, Any]) -> None:
    for name, number in _part(part, "parallelism").items():
        if name in ("tensor", "pipeline", "expert"):
            one_gpu(migrated, f"{path}.parallelism.{name}: {number}", str(number).removesuffix("False"))
        elif str(number) != "1":
            migrated.leave_out(f"{path}.parallelism.{name}: {number}", "set replicas for more engines")


def _workload(document: Mapping[str, Any]) -> Migrated | None:
    """Read a Deployment, StatefulSet or Pod.

    The result is None if no container runs vLLM or SGLang.
    """
    spec = _part(document, "spec")
    migrated = _first_container(_part(spec, "template", "spec") or spec)
    if migrated is not None and spec.get("replicas") is not None:
        migrated.put("spec.replicas", "replicas", spec["replicas"])
    return migrated


def _first_container(spec: Mapping[str, Any]) -> Migrated | None:
    for container in _containers(spec):
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
    """Yield the words of a container's command as a shell would read them; of a shell, its script."""
    words = [*_arguments(container, "command"), *_arguments(container)]
    shell = len(words) > 1 and words[0].rpartition("/")[2] in ("sh", "bash")
    yield from words[-1:] if shell else map(shlex.quote, words)


def _replica_bounds(migrated: Migrated, predictor: Mapping[str, Any]) -> None:
    for field in ("minReplicas", "maxReplicas"):
        if predictor.get(field) is not None:
            migrated.put(f"predictor.{field}", f"scaling.{field}", predictor[field])


def _resources(migrated: Migrated, container: Mapping[str, Any]) -> None:
    for name, amount in _part(container, "resources", "limits").items():
        if _PART_OF_GPU.search(name):
            reason = "a part of a GPU: plan with --device-memory, and name the resource in spec.resources"
            migrated.leave_out(f"{name}: {amount}", reason)
        elif _GPU.search(name) and str(amount) not in ("0", "1"):
            whole = str(amount).isdigit()
            reason = "this version runs an engine on one GPU" if whole else "an engine gets one whole GPU"
            migrated.leave_out(f"{name}: {amount}", reason)


_READERS = {
    ("kubeai.org", "Model"): _kubeai,
    ("serving.kserve.io", "InferenceService"): _inference_service,
    ("serving.kserve.io", "LLMInferenceService"): _llm_inference_service,
    ("apps", "Deployment"): _workload,
    ("apps", "StatefulSet"): _workload,
    ("v1", "Pod"): _workload,
}
