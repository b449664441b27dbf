"""Numbers as text of command lines and environment variables: exact, and short where they can be. Pure."""


def number(value: float) -> str:
    """Reads back as the very same number; `:g` would keep six digits of it."""
    return repr(float(value)).removesuffix(".0")
