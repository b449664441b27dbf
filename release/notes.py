"""Cuts the notes of a release out of the changelog. Pure; `build` calls it."""

import re

from release.errors import CannotRelease

UNRELEASED = "unreleased"
_HEADING = re.compile(r"^## (?P<version>\S+)(?: \((?P<date>[^)]*)\))?\s*$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def release_notes(changelog: str, version: str, *, released: bool) -> str:
    """Return the section of a version as Markdown, with its heading.

    Args:
        changelog: the text of CHANGELOG.md.
        version: the version.
        released: whether the version is one of a tag, which needs a section of its own with a date. Of any
            other version the newest section is returned.

    Raises CannotRelease.
    """
    headings = list(_HEADING.finditer(changelog))
    if not headings:
        raise CannotRelease("CHANGELOG.md has no section: begin one with `## VERSION (unreleased)`")
    chosen = next((each for each in headings if each["version"] == version), None)
    if not released:
        chosen = headings[0]
    if chosen is None:
        raise CannotRelease(
            f"CHANGELOG.md has no section {version}: write `## {version} (YYYY-MM-DD)` with what users notice"
        )
    if released and not _DATE.fullmatch(chosen["date"] or ""):
        raise CannotRelease(
            f"the section {version} of CHANGELOG.md has no date: write `## {version} (YYYY-MM-DD)`"
        )
    after = headings.index(chosen) + 1
    end = headings[after].start() if after < len(headings) else len(changelog)
    body = changelog[chosen.end() : end].strip()
    if not body:
        raise CannotRelease(f"the section {chosen['version']} of CHANGELOG.md is empty")
    heading = chosen[0].strip() if released else f"## {version}, before {chosen['version']}"
    return f"{heading}\n\n{body}\n"
