"""Defects of families with parts that no other family has."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="a block that layers share counts once for each of them",
        keeps="The parameters of a model are those of its files.",
        where="mamba_planner.arithmetic:count_parameters",
        old='min(config.shared.blocks, config.layers.count("shared_mamba"))',
        new='config.layers.count("shared_mamba")',
        tests=("tests/unit/planner/test_published_configs.py",),
    ),
    Mutant(
        name="layers whose blocks differ in the files share one",
        keeps="A checkpoint that is no model of the configuration is refused.",
        where="mamba_server.model.layers.shared_transformer:SharedTransformers._source",
        old="torch.equal(first, other)",
        new="True",
        tests=("tests/unit/model/test_shared_transformer.py",),
    ),
)
