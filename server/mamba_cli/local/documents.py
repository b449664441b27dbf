"""MambaDeployments out of files, for `plan` and `up`. Errors name file and field and end with exit code 2."""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mamba_api.errors import ContractError
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.documents import load_documents
from mamba_cli.errors import InvalidInput

STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class LoadedDeployment:
    """One object and the file it came from; relative model paths start at that file."""

    path: Path
    deployment: MambaDeployment


def read_deployments(paths: list[Path]) -> list[LoadedDeployment]:
    """Every MambaDeployment of the files, in order; `-` is standard input, read once and kept.

    Raises `InvalidInput` with all problems of all files.
    """
    found: list[LoadedDeployment] = []
    problems: list[str] = []
    for path in paths:
        try:
            text = _standard_input() if path == STDIN else path.read_text(encoding="utf-8")
            name = "standard input" if path == STDIN else str(path)
            found += [LoadedDeployment(path, each) for each in load_documents(text, name)]
        except FileNotFoundError:
            problems.append(f"{path}: no such file")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except ContractError as error:
            problems.append(str(error))
    problems += _twice(found)
    if problems:
        raise InvalidInput("\n".join(problems))
    return found


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
