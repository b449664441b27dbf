"""MambaDeployments out of files, for `plan` and `up`. Errors name file and field and end with exit code 2."""

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
_OF_A_CLUSTER = (
    "a cluster's own are named by its operator's settings: give the same file with --resource-profiles"
)


@dataclass(frozen=True, slots=True)
class LoadedDeployment:
    """One object and the file it came from; relative model paths start at that file."""

    path: Path
    deployment: MambaDeployment


def read_deployments(paths: list[Path], profiles: Profiles | None = None) -> list[LoadedDeployment]:
    """Every MambaDeployment of the files, in order; `-` is standard input, read once and kept.

    `profiles` are filled in; None leaves what an object says of its profile as it is. Raises `InvalidInput`
    with all problems of all files.
    """
    found: list[LoadedDeployment] = []
    problems: list[str] = []
    for path in paths:
        try:
            text = _standard_input() if path == STDIN else path.read_text(encoding="utf-8")
            name = "standard input" if path == STDIN else str(path)
            found += [LoadedDeployment(path, each) for each in load_documents(text, name)]
        except FileNotFoundError:
            problems.append(_of_a_model(path) or f"{path}: no such file")
        except IsADirectoryError:
            problems.append(_of_a_model(path) or f"{path}: is a directory; name the YAML files in it")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except ContractError as error:
            problems.append(str(error))
    problems += _twice(found)
    if profiles is not None:
        found, broken = _filled(found, profiles)
        problems += broken
    if problems:
        raise InvalidInput("\n".join(problems))
    return found


def _of_a_model(path: Path) -> str | None:
    """What to say of a model where a file with an object is wanted."""
    # A path has lost one of the two slashes.
    scheme, separator, rest = str(path).partition(":/")
    uri = f"{scheme}://{rest}" if separator and scheme.isalnum() else ""
    if not uri and not (path / "config.json").is_file():
        return None
    model = uri or path
    return f"{model}: is a model; a file with a MambaDeployment names it, or mambaserve serve {model}"


def _filled(found: list[LoadedDeployment], profiles: Profiles) -> tuple[list[LoadedDeployment], list[str]]:
    """The objects with their profiles, and what is wrong with those of others."""
    filled, problems = [], []
    for each in found:
        try:
            filled.append(LoadedDeployment(each.path, with_profile(each.deployment, profiles)))
        except UnknownProfile as error:
            problems.append(f"{each.path}: {each.deployment.name}: {error}; {_OF_A_CLUSTER}")
        except ContractError as error:
            problems.append(f"{each.path}: {each.deployment.name}: {error}")
    return filled, problems


@cache
def _standard_input() -> str:
    # It can be read only once, and what runs is compared with it again after an edit of another file.
    return sys.stdin.read()


def _twice(found: list[LoadedDeployment]) -> list[str]:
    seen: dict[str, LoadedDeployment] = {}
    problems = []
    for each in found:
        first = seen.setdefault(each.deployment.name, each)
        if first is each:
            continue
        # One file may hold a name in two namespaces; that it holds none twice, its reading has checked.
        if first.path != each.path or first.deployment.namespace == each.deployment.namespace:
            problems.append(f"{each.path}: {each.deployment.name} is already given in {first.path}")
    return problems
