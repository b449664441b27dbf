"""How many rows one program takes that loads a weight once for all of them."""

PROGRAMS = 1024
"""As many as keep a large GPU busy, eight on each of its processors."""
MOST_ROWS = 8
"""Of a program: a weight is then an eighth of a row's traffic, and a GPU's last programs do not take long."""


def rows_of_a_program(rows: int, parts: int = 1) -> int:
    """For `rows` rows of `parts` parts that are programs of their own: one where they are few."""
    return max(1, min(MOST_ROWS, rows * parts // PROGRAMS))
