"""The argument check that the kernels of `rope` share."""

from mamba_kernels.arguments import WrongArgument


def check_width(half: int, head_dim: int) -> None:
    """Raise WrongArgument if there are more angles than pairs in a head."""
    if 2 * half > head_dim:
        raise WrongArgument(f"cos has {half} angles; heads of {head_dim} have {head_dim // 2} pairs")
