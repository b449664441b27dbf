"""Version of a checkout, and its form in the names of images and charts. Pure.

A tag `vVERSION` on an unchanged checkout is a release. Every other checkout is a development version of the
next one, so that it sorts before that release and after the last one.
"""

import re
from dataclasses import dataclass

from packaging.version import Version

from release.errors import CannotRelease

RELEASE = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")
"""A version that can be released."""
_PARTS = re.compile(r"(\d+\.\d+\.\d+)(?:rc(\d+))?(?:\.dev(\d+))?(?:\+([a-z0-9.]+))?")
_ABBREVIATED = 9
"""Digits of a commit in a version."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """Facts that git knows about a checkout."""

    commit: str
    """Commit in 40 hexadecimal digits."""
    seconds: int
    """Time of the commit, in seconds since 1970."""
    tags: tuple[str, ...] = ()
    """Versions of the release tags on the commit, without their `v`."""
    last: str = ""
    """Version of the newest release tag before the commit; empty = none."""
    commits_since: int = 0
    """Number of commits since that tag, or since the beginning."""
    changed: bool = False
    """Whether files differ from the commit, or are new."""


def version_of(checkout: Checkout, declared: str) -> str:
    """Return the version of a checkout.

    Args:
        checkout: the checkout.
        declared: the version in pyproject.toml.

    Raises CannotRelease if the commit has a tag that names another version than pyproject.toml.
    """
    if checkout.tags and not checkout.changed:
        if declared not in checkout.tags:
            raise CannotRelease(
                f"the commit has the tag v{checkout.tags[0]}, and pyproject.toml says {declared}: remove the "
                f"tag, write the version with `make version VERSION={checkout.tags[0]}`, commit, tag again"
            )
        return declared
    # A tag on a commit below changed files is the last release of these files.
    last = checkout.tags[0] if checkout.tags else checkout.last
    base = declared
    if last and Version(declared) <= Version(last):
        base = _next(last)
    since = 0 if checkout.tags else checkout.commits_since
    local = f"g{checkout.commit[:_ABBREVIATED]}" + (".changed" if checkout.changed else "")
    return f"{base}.dev{since}+{local}"


def is_release(version: str) -> bool:
    """Return whether the version is one of a tag."""
    return RELEASE.fullmatch(version) is not None


def tag_of(version: str) -> str:
    """Return the version as a tag of images, which is a semantic version for charts, too.

    A plus sign is not allowed in tags: 0.2.0.dev5+g1234 becomes 0.2.0-dev.5.g1234.
    """
    parts = _PARTS.fullmatch(version)
    if parts is None:
        raise CannotRelease(f"{version!r} is no version of this project: write it as 0.2.0 or 0.2.0rc1")
    number, candidate, development, local = parts.groups()
    before = [
        *(("rc", candidate) if candidate else ()),
        *(("dev", development) if development else ()),
        *((local,) if local else ()),
    ]
    return f"{number}-{'.'.join(before)}" if before else str(number)


def _next(version: str) -> str:
    """Return the smallest release after `version`."""
    head, number = re.fullmatch(r"(.*?)(\d+)", version).groups()  # type: ignore[union-attr]
    return f"{head}{int(number) + 1}"
