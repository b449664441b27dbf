"""Defects of `mambaserve doctor`: set-ups that are broken and reported as sound."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="a torch that the engine cannot run on is reported as sound",
        keeps="Doctor names a torch that is older than the engine needs.",
        where="mamba_cli.doctor.engine:torch",
        old="numbers < OLDEST_TORCH",
        new="False",
        tests=(
            "tests/unit/cli/test_doctor.py::test_an_old_torch_an_old_driver_a_kernel_cache_that_is_a_file_and_a_silent_cluster_are_named",
        ),
    ),
    Mutant(
        name="a cache that cannot keep compiled kernels is reported as sound",
        keeps="Doctor names a place for compiled kernels that cannot be written.",
        where="mamba_cli.doctor.engine:kernels",
        old="not can_be_written(nearest_existing(folder))",
        new="False",
        tests=(
            "tests/unit/cli/test_doctor.py::test_an_old_torch_an_old_driver_a_kernel_cache_that_is_a_file_and_a_silent_cluster_are_named",
        ),
    ),
)
