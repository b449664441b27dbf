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
        """Run the command and return its standard output. Raises CommandFailed with its error output."""
        argv = [*self._argv, *arguments]
        command = " ".join([Path(self._argv[-1]).name, *arguments])
        try:
            done = subprocess.run(
                argv, input=stdin, env=self._environ, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(f"`{command}` did not end within {timeout:g} s") from error
        if done.returncode != 0:
            raise CommandFailed(
                f"`{command}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}",
                returncode=done.returncode,
                stderr=done.stderr,
            )
        return done.stdout


class Kubectl(Command):
    """kubectl: called for text, `json` for parsed objects."""

    def json(self, *arguments: str, timeout: float = 120.0) -> Any:
        """Return the parsed output of `kubectl ARGUMENTS -o json`."""
        return json.loads(self(*arguments, "-o", "json", timeout=timeout))


def objects_of(manifest: Manifest) -> list[Any]:
    """Return the objects of YAML text (one or several documents), of one object, or of a list of objects."""
    if isinstance(manifest, str):
        return [one for one in yaml.safe_load_all(manifest) if one]
    return [manifest] if isinstance(manifest, Mapping) else list(manifest)
