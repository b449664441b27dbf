"""Number of rows for a program that loads a weight once for all its rows."""

PROGRAMS = 1024
"""Programs that keep a large GPU busy, eight on each of its processors."""
MOST_ROWS = 8
"""Most rows of a program: the weight is then an eighth of a row's traffic, and the last programs are
short."""


def rows_of_a_program(rows: int, parts: int = 1) -> int:
    """Return how many of `rows` rows a program takes if each row has `parts` parts, one per program.

    Where rows are few, a program takes one, so that more programs run at once.
    """
    return max(1, min(MOST_ROWS, rows * parts // PROGRAMS))
