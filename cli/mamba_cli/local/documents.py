"""MambaDeployments read from files, for `plan` and `up`. Errors name the file and the field."""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mamba_api.errors import ContractError, UnknownProfile
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.documents import load_documents
from mamba_api.v1alpha1.profiles import Profiles, with_profile
from mamba_cli.errors import InvalidInput

STDIN = Path("-")
_CLUSTER_PROFILES = (
    "the profiles of a cluster are in the file that its operator reads: give that file with "
    "--resource-profiles"
)


@dataclass(frozen=True, slots=True)
class LoadedDeployment:
    """One MambaDeployment and the file it is from, to whose folder relative model paths refer."""

    path: Path
    deployment: MambaDeployment


def read_deployments(paths: list[Path], profiles: Profiles | None = None) -> list[LoadedDeployment]:
    """Return every MambaDeployment of the files, in order; `-` is standard input, read once and kept.

    The resource profile that an object names is applied from `profiles`; None leaves objects unchanged.
    Raises `InvalidInput` with all problems of all files.
    """
    deployments: list[LoadedDeployment] = []
    problems: list[str] = []
    for path in paths:
        try:
            text = _standard_input() if path == STDIN else path.read_text(encoding="utf-8")
            name = "standard input" if path == STDIN else str(path)
            deployments += [LoadedDeployment(path, deployment) for deployment in load_documents(text, name)]
        except FileNotFoundError:
            problems.append(_model_hint(path) or f"{path}: no such file")
        except IsADirectoryError:
            problems.append(_model_hint(path) or f"{path}: is a directory: give the YAML files in it")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except ContractError as error:
            problems.append(str(error))
    problems += _duplicates(deployments)
    if profiles is not None:
        deployments, profile_problems = _with_profiles(deployments, profiles)
        problems += profile_problems
    if problems:
        raise InvalidInput("\n".join(problems))
    return deployments


def _model_hint(path: Path) -> str | None:
    """Return the error for a model in place of a file with a MambaDeployment; None if it is no model."""
    # `Path` has removed one of the two slashes of a URI.
    scheme, separator, rest = str(path).partition(":/")
    uri = f"{scheme}://{rest}" if separator and scheme.isalnum() else ""
    if not uri and not (path / "config.json").is_file():
        return None
    model = uri or path
    return f"{model}: is a model, not a MambaDeployment: name it in one, or run mambaserve serve {model}"


def _with_profiles(
    deployments: list[LoadedDeployment], profiles: Profiles
) -> tuple[list[LoadedDeployment], list[str]]:
    """Return the objects with their profiles applied, and the problems of the others."""
    complete, problems = [], []
    for loaded in deployments:
        try:
            complete.append(LoadedDeployment(loaded.path, with_profile(loaded.deployment, profiles)))
        except UnknownProfile as error:
            problems.append(f"{loaded.path}: {loaded.deployment.name}: {error}; {_CLUSTER_PROFILES}")
        except ContractError as error:
            problems.append(f"{loaded.path}: {loaded.deployment.name}: {error}")
    return complete, problems


@cache
def _standard_input() -> str:
    # Standard input can be read only once, but every edit of another file reads all documents again.
    return sys.stdin.read()


def _duplicates(deployments: list[LoadedDeployment]) -> list[str]:
    seen: dict[str, LoadedDeployment] = {}
    problems = []
    for loaded in deployments:
        first = seen.setdefault(loaded.deployment.name, loaded)
        if first is loaded:
            continue
        # One file may hold a name in two namespaces; `load_documents` refuses true duplicates in a file.
        if first.path != loaded.path or first.deployment.namespace == loaded.deployment.namespace:
            problems.append(f"{loaded.path}: {loaded.deployment.name} is also defined in {first.path}")
    return problems
