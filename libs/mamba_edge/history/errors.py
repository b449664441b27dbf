"""Errors of histories.

ApiError
└── HistoryAway    503 history_unavailable    (Retry-After)
"""

from mamba_edge.errors import ApiError


class HistoryAway(ApiError):
    """The store of kept responses does not answer."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "history_unavailable", 2.0
