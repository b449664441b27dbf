"""Writes a version into every file that names it: `python -m release.stamp VERSION`, for `make version`.

`build` stamps its copy of the checkout with it; `make version` also records the operator's objects anew, as
their names follow from images. A file in which nothing is found is an error, so that no place is forgotten
when files move.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from release.errors import CannotRelease
from release.version import is_release, tag_of

ROOT = Path(__file__).resolve().parent.parent
_IMAGE = re.compile(r"(?<=[/ ])(mambaserve(?:-control-plane)?:)\d+\.\d+\.\d+[\w.-]*")
_LABEL = re.compile(r'(app\.kubernetes\.io/version: ")[^"]+(?=")')
_CHART = re.compile(r"^((?:version|appVersion): ).*$", re.MULTILINE)
_PROJECT = re.compile(r'^(version = ")[^"]+(?="$)', re.MULTILINE)
PLACES: tuple[tuple[str, tuple[re.Pattern[str], ...]], ...] = (
    ("charts/mambaserve/Chart.yaml", (_CHART,)),
    ("docs/howto/build-the-images.md", (_IMAGE,)),
    ("docs/howto/install.md", (_IMAGE,)),
    ("docs/reference/command-line.md", (_IMAGE,)),
    ("libs/mamba_api/names.py", (_IMAGE,)),
    ("manifests/mambaserve.yaml", (_IMAGE, _LABEL)),
    ("pyproject.toml", (_PROJECT,)),
)
"""Files with a version, and the patterns of its places; what a group matches stays before it."""


def stamp(root: Path, version: str) -> None:
    """Write `version` into the files below `root`. Raises CannotRelease."""
    for path, text in _stamped(root, version):
        path.write_text(text, encoding="utf-8")


def _stamped(root: Path, version: str) -> Iterator[tuple[Path, str]]:
    tag = tag_of(version)
    for name, patterns in PLACES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        for pattern in patterns:
            word = version if pattern is _PROJECT else tag
            text, places = pattern.subn(rf"\g<1>{word}", text)
            if not places:
                raise CannotRelease(f"{name} names no version: correct PLACES in release/stamp.py")
        yield path, text


def main() -> int:
    """Stamp the checkout; the exit code is 2 for a version that cannot be released."""
    version = sys.argv[1] if len(sys.argv) == 2 else ""
    if not is_release(version):
        print(f"error: {version!r} is no version: make version VERSION=0.2.0, or 0.2.0rc1", file=sys.stderr)
        return 2
    try:
        stamp(ROOT, version)
    except CannotRelease as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {version} into {len(PLACES)} files; next: its section of CHANGELOG.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
