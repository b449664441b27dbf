"""MambaDeployments out of files, for `plan` and `up`. Errors name file and field and end with exit code 2."""

from dataclasses import dataclass
from pathlib import Path

from mamba_api.documents import load_documents
from mamba_api.errors import ContractError
from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class LoadedDeployment:
    """One object and the file it came from; relative model paths start at that file."""

    path: Path
    deployment: MambaDeployment


def read_deployments(paths: list[Path]) -> list[LoadedDeployment]:
    """Every MambaDeployment of the files, in order. Raises `InvalidInput` with all problems of all files."""
    found: list[LoadedDeployment] = []
    problems: list[str] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
            found += [LoadedDeployment(path, each) for each in load_documents(text, str(path))]
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


def _twice(found: list[LoadedDeployment]) -> list[str]:
    seen: dict[str, Path] = {}
    problems = []
    for each in found:
        name = each.deployment.name
        if name in seen and seen[name] != each.path:
            problems.append(f"{each.path}: {name} is already given in {seen[name]}")
        seen.setdefault(name, each.path)
    return problems
