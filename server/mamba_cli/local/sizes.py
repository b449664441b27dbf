"""Sizes on the command line: Kubernetes quantities (80Gi, 512Mi, 40G). Errors name the option."""

from mamba_api.errors import InvalidQuantity
from mamba_api.quantity import Quantity
from mamba_cli.errors import InvalidInput


def size_option(option: str, text: str | None) -> int | None:
    """Bytes that `text` stands for. Raises `InvalidInput` that names `option`."""
    if text is None:
        return None
    try:
        count = Quantity(text).bytes
    except InvalidQuantity as error:
        raise InvalidInput(f"{option}: {error}") from error
    if count <= 0:
        raise InvalidInput(f"{option}: must be above 0")
    return count
