"""Transfer from the host to a device, used for all integers and parameters of a step."""

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to `device` without waiting for the copy; on a CPU return the tensor itself.

    The copy goes through pinned memory, which stays reserved until the copy is complete; a copy from pageable
    memory would block the host.
    """
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def aligned(entries: int) -> int:
    """Round a number of 4-byte entries up so that the next part of a packed buffer is aligned to 16 bytes.

    For a pointer that is not aligned, Triton would compile a kernel a second time.
    """
    return -(-entries // 4) * 4
