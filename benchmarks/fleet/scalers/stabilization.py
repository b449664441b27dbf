"""Shrinking only to the largest number recommended in a window, as the Kubernetes autoscalers do."""

from collections import deque


class Stabilization:
    """Over `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._recommended: deque[tuple[float, int]] = deque()

    def applied(self, at: float, wanted: int) -> int:
        """Return the recommendation in force after `wanted` is recommended."""
        while self._recommended and self._recommended[0][0] <= at - self._seconds:
            self._recommended.popleft()
        while self._recommended and self._recommended[-1][1] <= wanted:
            self._recommended.pop()
        self._recommended.append((at, wanted))
        return self._recommended[0][1]
