"""Rules of commit messages beyond gitlint's own: imperative, one change, and a body for changed behaviour.

gitlint loads this file by `extra-path` of `.gitlint`; `scripts/commit-msg` runs gitlint on each commit.
"""

from pathlib import Path
from typing import ClassVar

from gitlint.git import GitCommit
from gitlint.rules import CommitMessageTitle as Title
from gitlint.rules import CommitRule, LineRule, RuleViolation

# Verbs that subjects begin with; a verb that is missing may be added to the file.
VERBS = frozenset((Path(__file__).parent / "commit_verbs.txt").read_text().split())
PRODUCT = ("libs/", "operator/", "server/", "cli/", "kernels/", "charts/", "images/")
PROSE = (".md", ".txt")


class ImperativeTitle(LineRule):
    """The subject begins with a verb in the imperative: "Add", not "Added", "Adds" or a noun."""

    name = "title-imperative"
    id = "UL1"
    target = Title
    options_spec: ClassVar[list[object]] = []

    def validate(self, line: str, _commit: GitCommit) -> list[RuleViolation]:
        first = line.split(" ", 1)[0]
        if first in VERBS:
            return []
        message = (
            f"Begin the subject with a capitalized verb in the imperative (Add, Fix, Remove), not '{first}'; "
            "a verb that is missing can be added to scripts/commit_verbs.txt"
        )
        return [RuleViolation(self.id, message, line)]


class OneSubject(LineRule):
    """The subject names one change: no semicolon, and no full stop inside of it."""

    name = "title-one-subject"
    id = "UL2"
    target = Title
    options_spec: ClassVar[list[object]] = []

    def validate(self, line: str, _commit: GitCommit) -> list[RuleViolation]:
        if ";" in line or ". " in line:
            return [
                RuleViolation(
                    self.id, "Name one change in the subject; split the commit, or use the body", line
                )
            ]
        return []


class BodyForBehaviour(CommitRule):
    """A commit that changes the product has a body that says why."""

    name = "body-for-behaviour"
    id = "UC1"
    options_spec: ClassVar[list[object]] = []

    def validate(self, commit: GitCommit) -> list[RuleViolation]:
        touched = [
            path for path in commit.changed_files if path.startswith(PRODUCT) and not path.endswith(PROSE)
        ]
        if touched and not "".join(commit.message.body).strip():
            message = f"Say in a body why this changes the product ({touched[0]})"
            return [RuleViolation(self.id, message)]
        return []
