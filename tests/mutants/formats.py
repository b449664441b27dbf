"""Defects of reading checkpoints that are published quantized."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="zeros of GPTQ's first version are one too small",
        keeps="A quantized matrix is the numbers that its method stores.",
        where="checkpoint.weights:Weights.__init__",
        old="1 if quantization is None else quantization.zero_offset",
        new="0",
        tests=("tests/unit/model/test_quantized.py",),
    ),
    Mutant(
        name="the outputs of an AWQ word are read in ascending order",
        keeps="Numbers of a word belong to the outputs in the order of AWQ's kernel.",
        where="quantized.bit_fields:AWQ_ORDER",
        old="(0, 2, 4, 6, 1, 3, 5, 7)",
        new="(0, 1, 2, 3, 4, 5, 6, 7)",
        tests=("tests/unit/model/test_quantized.py",),
    ),
    Mutant(
        name="inputs in act order keep the places of the file",
        keeps="With act order the inputs of a group lie side by side.",
        where="quantized.stored_matrix:blocks",
        old="stored.numbers if order is None else stored.numbers[:, order.long()]",
        new="stored.numbers",
        tests=("tests/unit/model/test_quantized.py",),
    ),
    Mutant(
        name="modules that a list leaves alone are counted as quantized",
        keeps="Lists of modules that are not quantized are honoured by the plan.",
        where="families.quantization:Quantization.form_of",
        old="(rule.form for rule in self.rules if rule.names(module))",
        new="(rule.form for rule in reversed(self.rules) if rule.names(module))",
        tests=("tests/unit/planner/test_quantized_configs.py",),
    ),
    Mutant(
        name="zeros of a block are not stored",
        keeps="A matrix with zeros keeps each of them in its block.",
        where="quantized.int4_weight:Int4ZerosWeight._store_zeros",
        old="self._zeros(out).copy_(zeros)",
        new="self._zeros(out).fill_(8)",
        tests=("tests/unit/kernels/cpu/test_block_numbers.py", "tests/unit/model/test_quantized.py"),
    ),
    Mutant(
        name="the halves of a byte of four bits change places",
        keeps="A matrix of four bits keeps the input of each code.",
        where="four_bit.matrix:packed",
        old="halves[..., 0, :] | halves[..., 1, :] << 4",
        new="halves[..., 1, :] | halves[..., 0, :] << 4",
        tests=("tests/unit/kernels/test_four_bit.py",),
    ),
    Mutant(
        name="a plan forgets the factors of floating point codes",
        keeps="Matrices that stay in four bits on a GPU are planned to the byte.",
        where="families.quantization:StoredForm.packed_bytes",
        old="elements // 2 + groups + 4 * rows",
        new="elements // 2 + groups",
        tests=("tests/unit/model/test_four_bits.py",),
    ),
    Mutant(
        name="rows of a projection are chosen without their scales",
        keeps="The scales of an output go where its codes go.",
        where="four_bit.matrix:FourBitMatrix.select",
        old='("order",)',
        new='("order", "scales")',
        tests=("tests/unit/kernels/test_four_bit.py",),
    ),
    Mutant(
        name="a group of zeros decides the factor of its output",
        keeps="Powers of two of MXFP4 are relative to the largest one that counts.",
        where="four_bit.matrix:mxfp4_matrix",
        old="exponents.to(torch.int16).masked_fill(empty, 0)",
        new="exponents.to(torch.int16)",
        tests=("tests/unit/kernels/test_four_bit.py",),
    ),
)
