"""`AdapterCalls`: loads and unloads adapters while the engine serves, for admin calls.

Threads read the files. The loop gives the adapter a place, copies it there behind all launched steps, and
sends the reply; the API process lets no request use the adapter before that.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.held_adapters import NO_ADAPTERS, HeldAdapters
from mamba_server.model.adapters.adapter_bank import AdapterBank
from mamba_server.model.adapters.adapter_files import AdapterWeights
from mamba_server.model.checkpoint.errors import AdapterError, DownloadFailed, SourceError
from mamba_server.model.checkpoint.source import Progress, resolve_adapter
from mamba_server.wire import AdminCall, AdminReply, LoadedAdapter
from mamba_settings.adapter_settings import AdapterSettings

LOAD, UNLOAD = "adapter_load", "adapter_unload"
"""Names of the admin calls."""


def make_bank(settings: AdapterSettings, device: torch.device, dtype: torch.dtype) -> AdapterBank | None:
    """Return the places for adapters of an engine; None = it has none."""
    if not settings.lora_places:
        return None
    rank, expert_rank = settings.max_lora_rank, settings.max_lora_expert_rank
    return AdapterBank(settings.lora_places, rank, device, dtype, expert_rank=expert_rank)


def held_adapters(bank: AdapterBank | None) -> HeldAdapters:
    """Return the adapters of `bank` as the core sees them; without a bank there are none."""
    return NO_ADAPTERS if bank is None else bank


def load_at_start(
    bank: AdapterBank | None, paths: dict[str, str], report: Progress
) -> tuple[LoadedAdapter, ...]:
    """Load the adapters of the settings before there is a forward stream, downloading missing files.

    `bank` is None only if the settings name no adapter. Raises AdapterError, and DownloadFailed for what a
    later start may mend.
    """
    loaded = []
    for number, (name, path) in enumerate(paths.items()):
        assert bank is not None, "the settings have places for all adapters that they name"
        report("adapters", number, len(paths))
        try:
            adapter = bank.fitted(AdapterWeights.read(resolve_adapter(path, report)))
        except DownloadFailed as error:
            raise DownloadFailed(f"adapter {name}: {error}") from error
        except (AdapterError, SourceError) as error:
            raise AdapterError(f"adapter {name}: {error}") from error
        place = bank.reserve(adapter.fingerprint)
        assert place is not None
        bank.install(place, adapter)
        loaded.append(LoadedAdapter(name, path, adapter.fingerprint, adapter.rank))
    return tuple(loaded)


class AdapterCalls:
    """Loads and unloads the adapters of one engine, for admin calls.

    `wake` makes an idle loop look for work; any thread may call it.
    """

    def __init__(self, core: EngineCore, bank: AdapterBank | None, wake: Callable[[], None]) -> None:
        self._core, self._bank, self._wake = core, bank, wake
        self._read: deque[tuple[AdminCall, AdapterWeights | Exception]] = deque()
        """Loads whose files have been read, or could not be read."""
        self._replies: deque[AdminReply] = deque()

    def begin(self, call: AdminCall) -> bool:
        """Begin a load in a thread, or unload; return False for a call of another verb."""
        if call.verb not in (LOAD, UNLOAD):
            return False
        if self._bank is None:
            self._reply(call, 409, "this engine has no places for adapters: start it with --max-loras")
        elif call.verb == UNLOAD:
            self._unload(call, self._bank)
        else:
            threading.Thread(target=self._read_files, args=(call,), name="adapter", daemon=True).start()
        return True

    def take_replies(self) -> list[AdminReply]:
        """Install the adapters that have been read, and return the replies. The loop calls this."""
        while self._read:
            self._install(*self._read.popleft())
        replies, self._replies = [*self._replies], deque()
        return replies

    def _read_files(self, call: AdminCall) -> None:
        """Read the files of an adapter, downloading missing ones. Runs in a thread."""
        try:
            adapter: AdapterWeights | Exception = AdapterWeights.read(resolve_adapter(call.body["path"]))
        except Exception as error:
            adapter = error
        self._read.append((call, adapter))
        self._wake()

    def _install(self, call: AdminCall, adapter: AdapterWeights | Exception) -> None:
        bank = self._bank
        assert bank is not None
        try:
            if isinstance(adapter, Exception):
                raise adapter
            fitted = bank.fitted(adapter)
        except DownloadFailed as error:
            return self._reply(call, 502, str(error))
        except (AdapterError, SourceError) as error:
            return self._reply(call, 400, str(error))
        except Exception as error:
            return self._reply(call, 500, f"the adapter cannot be read: {type(error).__name__}: {error}")
        self._forget_unknown(bank, {*call.body["known"]})
        is_new = not bank.holds(fitted.fingerprint)
        place = bank.reserve(fitted.fingerprint)
        if place is None:
            return self._reply(
                call, 409,
                f"{bank.places} adapters are loaded, and there are places for no more: unload one, or start "
                f"with --max-loras {bank.places + 1}; an adapter that is replaced keeps its place until its "
                "last request has ended",
            )  # fmt: skip
        if is_new:
            self._core.on_device(lambda: bank.install(place, fitted))
        return self._reply(call, 200, fingerprint=fitted.fingerprint, rank=fitted.rank)

    def _forget_unknown(self, bank: AdapterBank, names: set[str]) -> None:
        """Free the places of adapters that are not in `names`: the API process did not wait for them."""
        for fingerprint in bank.fingerprints:
            if fingerprint not in names and not self._core.sequences_with(fingerprint):
                self._core.audits.interrupt()
                bank.remove(fingerprint)

    def _unload(self, call: AdminCall, bank: AdapterBank) -> None:
        fingerprint = str(call.body["fingerprint"])
        # An audit that is under way begins anew, and finds that the adapter is gone.
        self._core.audits.interrupt()
        if users := self._core.sequences_with(fingerprint):
            return self._reply(call, 409, f"{users} sequences use the adapter: wait until they have ended")
        if not bank.remove(fingerprint):
            return self._reply(call, 404, "the adapter is not loaded")
        return self._reply(call, 200, fingerprint=fingerprint)

    def _reply(self, call: AdminCall, status: int, message: str = "", **body: Any) -> None:
        self._replies.append(AdminReply(call.call_id, status, {"message": message} if message else {**body}))
