"""kubectl and helm against one test cluster, as a user would call them."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from testcluster.errors import CommandFailed

Manifest = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""YAML text, one object, or several."""


class Command:
    """A program that finds its cluster by KUBECONFIG; `prefix` runs it somewhere else (inside a node)."""

    def __init__(self, program: Path, kubeconfig: Path, prefix: Sequence[str] = ()) -> None:
        self._argv = [*prefix, str(program)]
        # Less collecting of garbage for a program that ends at once.
        self._environ = {"GOGC": "400", **os.environ, "KUBECONFIG": str(kubeconfig)}

    def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Standard output of the command. Raises CommandFailed with what it said when it fails."""
        argv = [*self._argv, *arguments]
        shown = " ".join([Path(self._argv[-1]).name, *arguments])
        try:
            done = subprocess.run(
                argv, input=stdin, env=self._environ, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(f"`{shown}` did not end within {timeout:g} s") from error
        if done.returncode != 0:
            raise CommandFailed(
                f"`{shown}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}",
                returncode=done.returncode,
                stderr=done.stderr,
            )
        return done.stdout


class Kubectl(Command):
    """kubectl: called for text, `json` for parsed objects."""

    def json(self, *arguments: str, timeout: float = 120.0) -> Any:
        """What `kubectl ARGUMENTS -o json` prints, parsed."""
        return json.loads(self(*arguments, "-o", "json", timeout=timeout))


def objects_of(manifest: Manifest) -> list[Any]:
    """The objects of YAML text of one or several documents, or of what is one or several objects already."""
    if isinstance(manifest, str):
        return [one for one in yaml.safe_load_all(manifest) if one]
    return [manifest] if isinstance(manifest, Mapping) else list(manifest)
