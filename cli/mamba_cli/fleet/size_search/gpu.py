"""Kinds of GPU that a fleet may be planned for, by their data sheets: memory, arithmetic, bandwidth."""

from dataclasses import dataclass, replace

from mamba_cli.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind."""

    name: str
    memory: int
    """Bytes that its driver offers."""
    flops: float
    """Dense 16-bit operations a second."""
    bandwidth: float
    """Bytes a second."""
    price: float | None = None
    """Of an hour; None: not told."""


KINDS = (
    Gpu("L4", 23_034 << 20, 121e12, 300e9),
    Gpu("L40S", 46_068 << 20, 362e12, 864e9),
    Gpu("A100", 81_920 << 20, 312e12, 2_039e9),
    Gpu("H100", 81_559 << 20, 989e12, 3_350e9),
    Gpu("H200", 143_771 << 20, 989e12, 4_800e9),
)


def chosen(names: list[str]) -> tuple[Gpu, ...]:
    """The kinds of `--gpu KIND` or `--gpu KIND=PRICE`; all if none is asked. Raises `InvalidInput`."""
    found = [_kind(text) for text in names]
    if len({gpu.name for gpu in found}) < len(found):
        raise InvalidInput("--gpu: each kind at most once")
    if any(gpu.price is None for gpu in found) and any(gpu.price is not None for gpu in found):
        raise InvalidInput("--gpu: a price for every kind or for none, such as --gpu L40S=1 --gpu H100=3")
    return tuple(found) or KINDS


def _kind(text: str) -> Gpu:
    name, priced, price = text.partition("=")
    known = {gpu.name.lower(): gpu for gpu in KINDS}
    if (gpu := known.get(name.lower())) is None:
        raise InvalidInput(f"--gpu: no kind {name!r}: use {', '.join(each.name for each in KINDS)}")
    if not priced:
        return gpu
    try:
        cost = float(price)
    except ValueError:
        cost = 0.0
    if not 0 < cost < float("inf"):
        raise InvalidInput(f"--gpu: {text}: an hour's price must be above 0, such as {name}=2.5")
    return replace(gpu, price=cost)
