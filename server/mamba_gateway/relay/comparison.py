"""A request that one engine rejected and that is at another: what that one says tells whose fault it was."""

from types import TracebackType
from typing import Self

from mamba_gateway.endpoints.pool import Pool


class Comparison:
    """The comparison of one request; the engine that rejected it gets no other request meanwhile."""

    __slots__ = ("_pool", "_url")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._url = ""
        """Base URL of the engine that rejected it; "" = there is nothing to compare."""

    def begin(self, url: str) -> None:
        """The engine rejected the request, which another one gets."""
        self.end(took=False)
        self._url = url
        self._pool.begin_comparison(url)

    def end(self, *, took: bool | None) -> None:
        """The other engine has answered. `took`: whether it took the request; None = it failed."""
        if self._url:
            url, self._url = self._url, ""
            self._pool.end_comparison(url, took=took)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(took=None)
