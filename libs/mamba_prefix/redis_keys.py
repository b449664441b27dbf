"""Where the index of a group of engines lies in Redis. One hash tag keeps it on one node of a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """Keys of one `scope`: the served model's name, or namespace/name of a MambaDeployment."""

    scope: str

    @property
    def _prefix(self) -> str:
        # A brace would end the tag early.
        return "mambaserve:prefix:1:{" + self.scope.replace("{", "(").replace("}", ")") + "}"

    @property
    def stream(self) -> str:
        """The changes of all engines, one field `m` an entry."""
        return f"{self._prefix}:changes"

    @property
    def engines(self) -> str:
        """The set of their names."""
        return f"{self._prefix}:engines"

    @property
    def written(self) -> str:
        """What gateways write to see whether that can be done."""
        return f"{self._prefix}:written"

    def heartbeat(self, engine: str) -> str:
        """Gone a few seconds after the engine is."""
        return f"{self._prefix}:heartbeat:{engine}"

    def snapshot(self, engine: str) -> str:
        """All it has."""
        return f"{self._prefix}:snapshot:{engine}"

    def wanted(self, engine: str) -> str:
        """There while a gateway misses changes and wants a new snapshot."""
        return f"{self._prefix}:wanted:{engine}"
