"""Writes the chart's objects as plain manifests, for `kubectl apply -k`.

    make manifests

Needs helm: the one of the test cluster, which is built at the first use. `tests/kube/test_manifests.py`
compares the manifests with the chart.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/cluster")]

NAMESPACE = "mambaserve-system"
CHART = ROOT / "charts/mambaserve"
RENDER = (
    "template",
    "mambaserve",
    str(CHART),
    "-n",
    NAMESPACE,
    "--no-hooks",
    "--set",
    "monitoring.dashboards=false",
)
"""Arguments of helm."""
FILE = ROOT / "manifests/mambaserve.yaml"
HEAD = "# Written by `make manifests` from charts/mambaserve. Do not edit: write an overlay.\n"
_OF_HELM = re.compile(
    r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/(chart|resource-policy): .*|# Source: .*)\n",
    re.MULTILINE,
)
_NO_ANNOTATIONS = re.compile(r"^( *)annotations:\n(?!\1  )", re.MULTILINE)


def plain(rendered: str) -> str:
    """Return the file's text from helm's output for RENDER."""
    return HEAD + _NO_ANNOTATIONS.sub("", _OF_HELM.sub("", rendered))


def main() -> None:
    from testcluster.build import ensure

    argv = [str(ensure() / "helm"), *RENDER]
    rendered = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
    FILE.write_text(plain(rendered), encoding="utf-8")
    sys.stdout.write(f"wrote {FILE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
