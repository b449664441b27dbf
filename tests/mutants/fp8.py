"""Defects of FP8: of its numbers and scales, of what a norm leaves for products, and of what is planned."""

from seeded import Mutant

NUMBERS = "tests/unit/kernels/test_fp8.py"
PAGES = "tests/unit/kernels/test_fp8_pages.py"
MODELS = "tests/unit/model/test_fp8_matrices.py"

MUTANTS = (
    Mutant(
        name="numbers beyond the largest one are not limited",
        keeps="A number that rounding lifts above the largest FP8 number becomes that one.",
        where="fp8.matrix:LARGEST",
        old="448.0",
        new="464.0",
        tests=(NUMBERS,),
    ),
    Mutant(
        name="a product takes the rows that another norm has left",
        keeps="A product multiplies the rows that it is given.",
        where="layers.fp8:NormedRows.take",
        old="rows is not self._rows or quantized is None or quantized.scales.shape[1] != groups",
        new="quantized is None or quantized.numbers.shape != rows.shape",
        tests=(MODELS,),
    ),
    Mutant(
        name="all groups of inputs have the scale of the first",
        keeps="Each group of 128 inputs has a scale of its own.",
        where="fp8.matrix:of_inputs",
        old="scales.repeat_interleave(GROUP, -1)[..., :inputs]",
        new="scales[..., :1]",
        tests=(NUMBERS, MODELS),
    ),
    Mutant(
        name="the head is rounded to FP8",
        keeps="Embedding and head keep their type with quantization fp8.",
        where="layers.loader:Loader.of_vocabulary",
        old='{"int4": "int8", "fp8": "none"}',
        new='{"int4": "int8"}',
        tests=(MODELS,),
    ),
    Mutant(
        name="what a checkpoint in FP8 left alone is rounded, too",
        keeps="A published FP8 checkpoint decides which of its matrices are FP8.",
        where="layers.loader:Loader.fp8",
        old="self.weights.fp8_form",
        new="False",
        tests=(MODELS,),
    ),
    Mutant(
        name="routers are planned as FP8",
        keeps="What is planned in FP8 is what is held, to the byte.",
        where="mamba_planner.arithmetic:kept_matrices",
        old="moe.experts + bool(moe.shared_gate)",
        new="0",
        tests=(MODELS,),
    ),
    Mutant(
        name="scales of pages are planned as if they took no memory",
        keeps="The planner counts what pages hold to the byte.",
        where="mamba_planner.arithmetic:kv_bytes_per_token",
        old="attention.head_dim + PAGE_SCALE_BYTES",
        new="attention.head_dim",
        tests=("tests/unit/engine/test_fp8_pages_of_engines.py",),
    ),
    Mutant(
        name="the largest number of a row of keys is saturated",
        keeps="A row's scale is large enough for its largest number.",
        where="mamba_kernels.fp8_pages:TOP",
        old="0x1FFFFF",
        new="0",
        tests=(PAGES,),
    ),
    Mutant(
        name="values have the scales of keys",
        keeps="Each row of a page is read with its own scale.",
        where="mamba_kernels.fp8_pages:stored_rows",
        old="(kv.numbers, kv.scales)",
        new="(kv.numbers, kv.scales[:, :1].expand_as(kv.scales))",
        tests=(PAGES,),
    ),
    Mutant(
        name="a model without attention is started with pages of FP8",
        keeps="A field that nothing acts on is refused.",
        where="mamba_planner.engine_plan:_check_pages",
        old="model.attention is None",
        new="False",
        tests=("tests/unit/planner/test_constraints.py",),
    ),
    Mutant(
        name="engines with wider pages take pages of FP8",
        keeps="States and pages travel only between engines whose pages have one type.",
        where="mamba_transfer.layout:_parts",
        old="kv_cache_dtype == FP8_PAGES",
        new="False",
        tests=("tests/unit/engine/test_fp8_pages_of_engines.py",),
    ),
)
