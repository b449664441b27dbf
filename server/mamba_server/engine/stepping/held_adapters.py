"""`HeldAdapters`: the adapters of an engine as its core sees them, which refuses requests of any other."""

from typing import Protocol

from mamba_server.wire import AddRequest, RequestRejected


class HeldAdapters(Protocol):
    """Knows which adapters are loaded; the bank of the model's adapters implements it."""

    def holds(self, fingerprint: str) -> bool:
        """Return whether the adapter with this fingerprint is held; "" = no adapter, which always is."""
        ...


class NoAdapters:
    """`HeldAdapters` of an engine that has loaded none."""

    def holds(self, fingerprint: str) -> bool:
        """Return whether `fingerprint` is empty, which means no adapter."""
        return not fingerprint


NO_ADAPTERS = NoAdapters()


def unknown_adapter(request: AddRequest) -> RequestRejected:
    """Return the rejection of a request whose adapter is not held: it was unloaded meanwhile."""
    return RequestRejected(
        request.request_id, 404, "invalid_request_error", "model_not_found",
        "the adapter of this request is not loaded any more: load it again, or choose another model of "
        "/v1/models",
    )  # fmt: skip
