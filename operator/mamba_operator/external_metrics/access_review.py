"""Authorization of external metrics' readers by a SubjectAccessReview of the API server.

Answers are cached for some seconds, because autoscalers repeat the same request.
"""

import time
from collections.abc import Callable
from typing import Any

from mamba_operator.external_metrics.front_proxy import UserInfo
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.kinds import SUBJECT_ACCESS_REVIEW

CACHE_SECONDS = 10.0
"""Seconds for which an answer is valid."""
MAX_ANSWERS = 1024
"""Largest number of cached answers."""
AccessQuery = tuple[tuple[str, str], ...]
"""Fields of resourceAttributes or nonResourceAttributes, sorted."""


class AccessReview:
    """Asks the API server, by a SubjectAccessReview, what a user may do; remembers the answers."""

    def __init__(self, client: KubeClient, now: Callable[[], float] = time.monotonic) -> None:
        self._client, self._now = client, now
        self._answers: dict[tuple[UserInfo, str, AccessQuery], tuple[float, bool]] = {}

    async def may(self, user_info: UserInfo, about: str, **question: str) -> bool:
        """Return whether the user may do what `question` describes.

        `about` is the attribute of the review: resourceAttributes or nonResourceAttributes; `question` are
        its fields.

        Raises:
            ClusterError: the API server gave no answer.
        """
        key = (user_info, about, tuple(sorted(question.items())))
        when, allowed = self._answers.get(key, (float("-inf"), False))
        if self._now() - when < CACHE_SECONDS:
            return allowed
        answer = await self._client.create(_manifest(user_info, about, question))
        allowed = (answer.get("status") or {}).get("allowed") is True
        if len(self._answers) >= MAX_ANSWERS:
            self._answers.clear()
        self._answers[key] = (self._now(), allowed)
        return allowed


def _manifest(user_info: UserInfo, about: str, question: dict[str, str]) -> dict[str, Any]:
    spec = {
        "user": user_info.user,
        "groups": list(user_info.groups),
        "extra": {name: list(values) for name, values in user_info.extra},
        about: question,
    }
    kind = SUBJECT_ACCESS_REVIEW
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
