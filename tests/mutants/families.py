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
    Mutant(
        name="pages of latent attention have room for keys and values",
        keeps="The planner counts what pages hold to the byte.",
        where="mamba_planner.arithmetic:kv_bytes_per_token",
        old="attention.parts * model.kv_layers * heads * row",
        new="2 * model.kv_layers * heads * row",
        tests=("tests/unit/planner/test_arithmetic.py",),
    ),
    Mutant(
        name="one decay serves all channels of a key",
        keeps="Each channel of a key decays by its own rate.",
        where="mamba_kernels.gated_delta.reference:_update_rows",
        old="rows.log_decay.transpose(0, 1).exp()[..., None, :]",
        new="rows.log_decay.transpose(0, 1)[..., :1].exp()[..., None, :]",
        tests=("tests/unit/kernels/test_gated_delta.py",),
    ),
)
