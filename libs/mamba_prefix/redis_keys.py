"""Keys of the index of a group of engines in Redis. One hash tag keeps them on one node of a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """The keys of the index of the engines of `scope`.

    A scope is the name of the served model, or namespace/name of a MambaDeployment.
    """

    scope: str

    @property
    def _prefix(self) -> str:
        # A brace in the scope would end the tag early.
        return "mambaserve:prefix:1:{" + self.scope.replace("{", "(").replace("}", ")") + "}"

    @property
    def stream(self) -> str:
        """Key of the stream with the changes of all engines; each entry has one field, `m`."""
        return f"{self._prefix}:changes"

    @property
    def engines(self) -> str:
        """Key of the set of engine names."""
        return f"{self._prefix}:engines"

    @property
    def written(self) -> str:
        """Key that gateways write to check whether Redis accepts writes."""
        return f"{self._prefix}:written"

    def heartbeat(self, engine: str) -> str:
        """Return the key of an engine's heartbeat, which expires a few seconds after the engine's end."""
        return f"{self._prefix}:heartbeat:{engine}"

    def snapshot(self, engine: str) -> str:
        """Return the key of an engine's snapshot."""
        return f"{self._prefix}:snapshot:{engine}"

    def wanted(self, engine: str) -> str:
        """Return the key that exists while a gateway needs a new snapshot of an engine."""
        return f"{self._prefix}:wanted:{engine}"
