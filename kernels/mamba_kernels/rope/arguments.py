"""Checks that the kernels of `rope` share."""

from mamba_kernels.arguments import WrongArgument


def check_width(half: int, head_dim: int) -> None:
    """Raises WrongArgument where more is turned than a head has."""
    if 2 * half > head_dim:
        raise WrongArgument(f"cos has {half} angles; heads of {head_dim} have {head_dim // 2} pairs")
