"""From the host to a device: the one way that a step's integers and parameters take."""

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` of the host on `device`, without waiting for the copy; on a CPU the tensor itself.

    The copy goes through pinned memory, which stays reserved until it is complete: from pageable memory the
    host would wait.
    """
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def aligned(entries: int) -> int:
    """How many 4-byte entries a part of a packed buffer takes so that the next one begins at 16 bytes.

    A kernel is compiled once more for a pointer that does not.
    """
    return -(-entries // 4) * 4
