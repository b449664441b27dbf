"""Reads MambaDeployments from YAML text, with errors a person can act on.

Local mode, `mambaserve plan` and the tests of the examples call `load_documents`. It reads no file and
changes nothing: the caller passes the text and the name to show for it.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mamba_api.errors import InvalidDocument
from mamba_api.names import API_VERSION, GATEWAY_KIND, GROUP, KIND, VERSION
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.base import RULES_LATER
from mamba_api.v1alpha1.deployment import NAME_PATTERN

MAX_DOCUMENTS = 256


def load_documents(text: str, source: str) -> list[MambaDeployment]:
    """Return every MambaDeployment of a (multi-document) YAML text, in order.

    Documents of other kinds are skipped, because one file often also holds a Secret. A text without any
    MambaDeployment is an error.

    Args:
        text: YAML.
        source: name of the text in messages: a file name or `<stdin>`.

    Raises:
        InvalidDocument: all problems of all documents, one line each.
    """
    deployments: list[MambaDeployment] = []
    problems: list[str] = []
    for index, data in enumerate(parse(text, source), start=1):
        where = _where(source, index, data)
        match data:
            case None:
                continue
            case dict():
                if problem := _identity_problem(data):
                    problems.append(f"{where}: {problem}")
                elif _is_ours(data):
                    try:
                        deployments.append(MambaDeployment.model_validate(data, by_alias=True, by_name=False))
                    except ValidationError as error:
                        problems += [f"{where}: {line}" for line in _explain_all(data, error)]
            case _:
                problems.append(f"{where}: a Kubernetes object is a mapping, this is a {type(data).__name__}")
    problems += _duplicates(deployments, source)
    if not deployments and not problems:
        problems.append(
            f"{source}: no {KIND} in it: a document needs kind: {KIND} and apiVersion: {API_VERSION}"
        )
    if problems:
        raise InvalidDocument(source, problems)
    return deployments


def _explain_all(data: dict[str, Any], error: ValidationError) -> list[str]:
    """Explain why an object is invalid, one line per problem.

    If only rules are broken, the broken rules of every depth are listed, as the API server does.
    """
    if any(details["type"] != "rule" for details in error.errors(include_url=False)):
        return explain(error)
    whole = MambaDeployment.model_validate(data, by_alias=True, by_name=False, context=RULES_LATER)
    places = ((field_path(location), message) for location, message in whole.broken_rules())
    return [f"{path}: {message}" if path else message for path, message in places]


def explain(error: ValidationError, model: type[BaseModel] = MambaDeployment) -> list[str]:
    """Return one line per problem: path of the field in YAML spelling, problem, nearest valid field.

    `model` is the type that the document was read as.
    """
    return [_explain_one(details, model) for details in error.errors(include_url=False, include_context=True)]


def field_path(location: Sequence[str | int]) -> str:
    """Return `("spec", "engine", "env", 0, "name")` as `spec.engine.env[0].name`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def parse(text: str, source: str) -> list[Any]:
    """Parse every document of a YAML text by strict rules. Raises InvalidDocument."""
    try:
        documents = []
        for document in yaml.load_all(text, Loader=_StrictLoader):
            documents.append(document)
            if len(documents) > MAX_DOCUMENTS:
                raise InvalidDocument(source, [f"{source}: more than {MAX_DOCUMENTS} YAML documents"])
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidDocument(
            source, [f"{source}{line}: not valid YAML: {error.problem or error.context}"]
        ) from None
    except yaml.YAMLError as error:
        raise InvalidDocument(source, [f"{source}: not valid YAML: {error}"]) from None
    except RecursionError:
        raise InvalidDocument(source, [f"{source}: not valid YAML: nested too deeply"]) from None
    return documents


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and aliases and reads timestamps as text."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(
                None, None, "aliases (*name) are not supported: write the value out", mark
            )
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError):
            # The constructors of numbers and booleans trust the pattern that chose them, and 0x_ matches it.
            raise yaml.constructor.ConstructorError(
                None, None, f"{_excerpt(node.value)} cannot be read: quote it if it is text", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"keys are strings: quote {key!r}", key_node.start_mark
                )
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", key_node.start_mark
                )
            keys.add(key)
        return super().construct_mapping(node, deep)


def _timestamp_as_text(loader: _StrictLoader, node: yaml.ScalarNode) -> str:
    return loader.construct_scalar(node)


_StrictLoader.add_constructor("tag:yaml.org,2002:timestamp", _timestamp_as_text)


def _where(source: str, index: int, data: Any) -> str:
    metadata = data.get("metadata") if isinstance(data, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{source}: document {index}" + (f" ({name})" if isinstance(name, str) else "")


def _is_ours(data: dict[str, Any]) -> bool:
    return data.get("kind") == KIND and data.get("apiVersion") == API_VERSION


def _identity_problem(data: dict[str, Any]) -> str | None:
    """Return the problem with kind or apiVersion of a document of our API; None if they are right.

    The result is also None for a document of another API, which is not read.
    """
    kind, version = data.get("kind"), data.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        missing = "kind" if not isinstance(kind, str) else "apiVersion"
        return f"{missing} is missing: write apiVersion: {API_VERSION} and kind: {KIND}"
    if kind == KIND and version != API_VERSION:
        return f"apiVersion: {version!r} is not served: write {API_VERSION}"
    if kind == GATEWAY_KIND and version.startswith(f"{GROUP}/"):
        return (
            f"a {GATEWAY_KIND} is for clusters: leave it out here, where several objects are served at one "
            "address without it"
        )
    if kind != KIND and version.startswith(f"{GROUP}/"):
        return f"kind: {kind!r} is unknown in {GROUP}/{VERSION}: write {KIND}"
    return None


def _duplicates(deployments: Iterable[MambaDeployment], source: str) -> list[str]:
    keys: set[tuple[str, str]] = set()
    problems = []
    for deployment in deployments:
        key = (deployment.namespace, deployment.name)
        if key in keys:
            problems.append(
                f"{source}: {deployment.name} is given twice in the namespace {deployment.namespace}"
            )
        keys.add(key)
    return problems


def _explain_one(details: ErrorDetails, model: type[BaseModel]) -> str:
    location = details["loc"]
    path = field_path(location)
    match details["type"]:
        case "extra_forbidden":
            return f"{path}: unknown field{_did_you_mean(location, model)}"
        case "missing":
            return f"{path}: missing"
        case "literal_error":
            expected = details.get("ctx", {}).get("expected", "")
            hint = _nearest_word(details["input"], expected)
            return f"{path}: {details['input']!r} is not one of {expected}{hint}".replace("'", "")
        case "rule" | "value_error":
            message = details["msg"].removeprefix("Value error, ")
            return f"{path}: {message}" if path else message
        case "string_pattern_mismatch":
            pattern = details.get("ctx", {}).get("pattern", "")
            if pattern == NAME_PATTERN:
                advice = "a name consists of a-z, 0-9 and -, begins with a letter and does not end with -"
                return f"{path}: {_excerpt(details['input'])}: {advice}"
            return f"{path}: {details['input']!r} does not match {pattern}"
        case "string_too_short" | "too_short" | "string_too_long" | "too_long":
            return f"{path}: {_excerpt(details['input'])}: {_length_advice(details['type'], details['ctx'])}"
        case _:
            message = details["msg"].removeprefix("Input should be ").replace("a valid integer", "an integer")
            message = re.sub(r"^a valid ", "a ", message)
            message = re.sub(r"a dictionary or instance of \w+|a dictionary", "a mapping", message)
            return f"{path}: {_excerpt(details['input'])} should be {message}"


def _nearest_word(value: Any, expected: str) -> str:
    """Return a hint at the word of `expected`, as pydantic lists the words, that `value` resembles."""
    words = {word.lower(): word for word in re.findall(r"'([^']*)'", expected)}
    close = difflib.get_close_matches(str(value).lower(), words, n=1, cutoff=0.8)
    return f"; did you mean {words[close[0]]}?" if close else ""


def _length_advice(kind: str, limits: dict[str, Any]) -> str:
    unit = "characters" if kind.startswith("string") else "items"
    if kind.endswith("short"):
        return "must not be empty" if limits["min_length"] == 1 else f"at least {limits['min_length']} {unit}"
    return f"at most {limits['max_length']} {unit}"


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _did_you_mean(location: Sequence[str | int], root: type[BaseModel]) -> str:
    model = _model_at(location[:-1], root)
    if model is None:
        return ""
    names = [field.alias or name for name, field in model.model_fields.items()]
    typed = str(location[-1])
    by_lower_case = {name.lower(): name for name in names}
    query = re.sub(r"[^a-z0-9]", "", typed.lower())
    close = difflib.get_close_matches(query, by_lower_case, n=1)
    close = close or [name for name in by_lower_case if query and name.startswith(query)]
    if close:
        return f"; did you mean {by_lower_case[close[0]]}?"
    return f"; known here: {', '.join(sorted(names))}"


def _model_at(location: Sequence[str | int], root: type[BaseModel]) -> type[BaseModel] | None:
    """Return the model whose fields stand at `location`, or None inside free-form parts."""
    model = root
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for name, f in model.model_fields.items() if part in (f.alias, name)), None)
        nested = _model_in(field.annotation) if field else None
        if nested is None:
            return None
        model = nested
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `Model | None`, `list[Model]` or `Annotated[...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for arg in get_args(annotation) if (model := _model_in(arg))), None)
