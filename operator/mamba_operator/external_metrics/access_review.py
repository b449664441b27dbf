"""Whether somebody may read external metrics: the API server is asked, by a SubjectAccessReview.

Answers are kept for some seconds, since autoscalers ask the same again and again.
"""

import time
from collections.abc import Callable
from typing import Any

from mamba_operator.external_metrics.front_proxy import UserInfo
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.kinds import SUBJECT_ACCESS_REVIEW

KEPT = 10.0
"""Seconds for which an answer holds."""
MOST = 1024
"""Answers kept."""
AccessQuery = tuple[tuple[str, str], ...]
"""Fields of resourceAttributes or nonResourceAttributes, sorted."""


class AccessReview:
    """Asks and remembers."""

    def __init__(self, client: KubeClient, now: Callable[[], float] = time.monotonic) -> None:
        self._client, self._now = client, now
        self._answers: dict[tuple[UserInfo, str, AccessQuery], tuple[float, bool]] = {}

    async def may(self, user_info: UserInfo, about: str, **question: str) -> bool:
        """Whether `user_info` may. `about` is resourceAttributes or nonResourceAttributes.

        Raises:
            ClusterError: the API server gave no answer.
        """
        key = (user_info, about, tuple(sorted(question.items())))
        when, allowed = self._answers.get(key, (float("-inf"), False))
        if self._now() - when < KEPT:
            return allowed
        answer = await self._client.create(_manifest(user_info, about, question))
        allowed = (answer.get("status") or {}).get("allowed") is True
        if len(self._answers) >= MOST:
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
