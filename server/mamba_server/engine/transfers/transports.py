"""Creation of the transport that carries the states of one engine, as the settings name it.

The engine checks the settings before it loads weights, and `start_transfers` creates the transport. Sockets
need nothing. NIXL needs its package and an arena in host memory, all of which is registered with it, because
states are read from and written to the arena itself.
"""

import os
import secrets

import torch

from mamba_settings.engine_settings import EngineSettings
from mamba_transfer.errors import TransferError
from mamba_transfer.transport import Transport


class TransfersUnusable(Exception):
    """The port of the transfer server, its transport, or the directory of a cache tier, cannot be used."""

    exit_code = 2


def check_transport(settings: EngineSettings) -> None:
    """Check that the package of the settings' transport is installed. Raises TransfersUnusable."""
    if settings.transfer_transport == "nixl":
        from mamba_transfer.nixl_transport import nixl_api

        try:
            nixl_api()
        except TransferError as error:
            raise TransfersUnusable(f"--transfer-transport nixl: {error}") from error


def transport_of(settings: EngineSettings, arena: torch.Tensor) -> Transport | None:
    """Return the transport that the settings name, for states in `arena`; None = sockets.

    `arena` is the memory of the arena as bytes. Raises TransfersUnusable.
    """
    if settings.transfer_transport == "sockets":
        return None
    if arena.is_cuda:
        raise TransfersUnusable(
            "--transfer-transport nixl is refused on a GPU by this version, whose states pass through host "
            "memory that NIXL does not know: use --transfer-transport sockets, or --device cpu"
        )
    # Only engines that ask for NIXL have its package.
    from mamba_transfer.nixl_transport import NixlTransport

    try:
        # NIXL keeps what it knows of an agent by its name, so an engine that restarts has another one.
        return NixlTransport(f"engine-{os.getpid()}-{secrets.token_hex(8)}", arena.numpy().data)
    except TransferError as error:
        raise TransfersUnusable(f"--transfer-transport nixl: {error}") from error
