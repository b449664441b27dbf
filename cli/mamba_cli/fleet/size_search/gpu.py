"""Kinds of GPU for which a fleet can be planned, with the numbers of their data sheets."""

from dataclasses import dataclass, replace

from mamba_cli.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU, with the numbers of its data sheet."""

    name: str
    memory: int
    """Bytes that the driver offers."""
    flops: float
    """Dense 16-bit operations per second."""
    bandwidth: float
    """Bytes per second."""
    price: float | None = None
    """Price of an hour, or None if the user gave no price."""


KINDS = (
    Gpu("L4", 23_034 << 20, 121e12, 300e9),
    Gpu("L40S", 46_068 << 20, 362e12, 864e9),
    Gpu("A100", 81_920 << 20, 312e12, 2_039e9),
    Gpu("H100", 81_559 << 20, 989e12, 3_350e9),
    Gpu("H200", 143_771 << 20, 989e12, 4_800e9),
)


def chosen(names: list[str]) -> tuple[Gpu, ...]:
    """Return the kinds named by `--gpu KIND` or `--gpu KIND=PRICE`, or all kinds if no option was given.

    Raises:
        InvalidInput: A kind is not supported or repeated, or a price is missing or invalid.
    """
    gpus = [_kind(text) for text in names]
    if len({gpu.name for gpu in gpus}) < len(gpus):
        raise InvalidInput("--gpu: name each kind at most once")
    if any(gpu.price is None for gpu in gpus) and any(gpu.price is not None for gpu in gpus):
        raise InvalidInput(
            "--gpu: give a price for every kind or for none, such as --gpu L40S=1 --gpu H100=3"
        )
    return tuple(gpus) or KINDS


def _kind(text: str) -> Gpu:
    name, separator, price = text.partition("=")
    by_name = {gpu.name.lower(): gpu for gpu in KINDS}
    if (gpu := by_name.get(name.lower())) is None:
        raise InvalidInput(f"--gpu: no kind {name!r}: use {', '.join(kind.name for kind in KINDS)}")
    if not separator:
        return gpu
    try:
        cost = float(price)
    except ValueError:
        cost = 0.0
    if not 0 < cost < float("inf"):
        raise InvalidInput(f"--gpu: {text}: the price of an hour must be above 0, such as {name}=2.5")
    return replace(gpu, price=cost)
