"""Defects of what keeps the numbers and pictures of pages true."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="a number without a source is let pass",
        keeps="A number with a unit of measurement is kept by a result, or chosen by a line of code.",
        where="benchmarks.figures.prose:unkept",
        old="number not in known",
        new="number in known",
        tests=("tests/unit/benchmarks/test_figures.py",),
    ),
    Mutant(
        name="numbers of tables count only with a unit",
        keeps="A decimal fraction in a table is a measurement, too.",
        where="benchmarks.figures.prose:measured_numbers",
        old="found + fractions(line)",
        new="found",
        tests=("tests/unit/benchmarks/test_figures.py",),
    ),
    Mutant(
        name="a picture leaves out one of two seeds",
        keeps="A bar is the mean over the seeds of its workload and way.",
        where="benchmarks.pictures.measured:routing",
        old='sum(row["relative"] for row in rows) / len(rows)',
        new='sum(row["relative"] for row in rows) / len(rows) / 2',
        tests=("tests/unit/benchmarks/test_pictures.py",),
    ),
)
