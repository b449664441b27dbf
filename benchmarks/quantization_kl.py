"""Distance of answers with quantized weights from those of bfloat16, for each form of weights.

    python -m benchmarks.quantization_kl
    python -m benchmarks.quantization_kl --checkpoint DIR --tokens 256
    python -m benchmarks.quantization_kl --only shipped

Mean over the positions of a text of KL(bfloat16 || form), and the share of positions whose best token stays.
The texts are the conversations beside the shipped model, and random tokens for a random 263M model. The forms
that `--quantization` makes on CPUs are computed by the engine's own kernels, with rows of int8. Of all other
forms the numbers are rounded to the nearest, without calibration, which the programs of GPTQ and AWQ do
better, and multiplied in bfloat16, as GPUs do. Writes JSON and Markdown to `results`; `make docs` writes the
table of `docs/reference/models.md` from the newest.
"""

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import torch
import torch.nn.functional as F
from benchmarks.cache.record import write
from benchmarks.checkpoint import CONFIG, random_checkpoint
from tokenizers import Tokenizer

import mamba_server
from mamba_api.choices import Quantization
from mamba_kernels.cpu.quantized.block_numbers import BLOCK
from mamba_kernels.four_bit.fit import fit_integers
from mamba_kernels.four_bit.matrix import E2M1, FourBitMatrix
from mamba_kernels.fp8 import Fp8Matrix
from mamba_planner.families.registry import load_model_config
from mamba_planner.families.stored_matrices import matrices
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.layers.hybrid import HybridModel

sys.path += [str(Path(__file__).parents[1] / "tests" / "models")]
batches: Any = importlib.import_module("testmodels.batches")

CPU = torch.device("cpu")
SHIPPED = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
MODELS = ("shipped", "263M")
PIECE = 256
"""Tokens that a step computes."""
PAGE = 16
Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Function that rounds float32 weights [outputs, inputs] to numbers of a form."""


def _in_groups(size: int, change: Rounding, weight: torch.Tensor) -> torch.Tensor:
    """Return what `change` makes of groups [outputs, groups, size]."""
    inputs = weight.shape[1]
    groups = F.pad(weight, (0, -inputs % size)).unflatten(1, (-1, size))
    return change(groups).flatten(1)[:, :inputs]


def _integers(groups: torch.Tensor) -> torch.Tensor:
    scale, numbers = fit_integers(groups.permute(2, 0, 1).contiguous())
    return (numbers * scale.float()).permute(1, 2, 0)


def _with_zeros(groups: torch.Tensor) -> torch.Tensor:
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).half().float().clamp(min=1e-7)
    zero = (-low / scale).round().clamp(0, 15)
    return ((groups / scale + zero).round().clamp(0, 15) - zero) * scale


def _e2m1(values: torch.Tensor) -> torch.Tensor:
    """Return the nearest e2m1 numbers."""
    table = torch.tensor(E2M1)
    places = torch.bucketize(values.abs(), (table[1:] + table[:-1]) / 2)
    return table[places] * values.sign()


def _nvfp4(weight: torch.Tensor) -> torch.Tensor:
    factor = weight.abs().max() / (6 * 448)

    def rounded(groups: torch.Tensor) -> torch.Tensor:
        scale = (groups.abs().amax(-1, keepdim=True) / 6 / factor).to(torch.float8_e4m3fn).float() * factor
        return _e2m1(groups / scale.clamp(min=1e-30)) * scale

    return _in_groups(16, rounded, weight)


def _mxfp4(groups: torch.Tensor) -> torch.Tensor:
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    # The exponent of the largest number less that of e2m1's, as the specification of the format has it.
    scale = torch.exp2(largest.log2().floor() - 2)
    return _e2m1(groups / scale) * scale


def _fp8(weight: torch.Tensor) -> torch.Tensor:
    return Fp8Matrix.of(weight).plain(weight.dtype)


def _fitted(weight: torch.Tensor) -> torch.Tensor:
    return FourBitMatrix.fit(weight).plain(weight.dtype)


@dataclass(frozen=True)
class Form:
    """A form of weights: as the engine makes it on CPUs, or rounded and multiplied in bfloat16."""

    words: str
    bits: float
    quantization: Quantization = "none"
    rounding: Rounding | None = None


FORMS = (
    Form("int8, rows of int8 (`--quantization int8`, CPUs)", 8.5, "int8"),
    Form("FP8, a scale of each output", 8, rounding=_fp8),
    Form("int4, rows of int8 (`--quantization int4`, CPUs)", 4.5, "int4"),
    Form("int4, groups of 32 (`--quantization int4`, GPUs)", 4.5, rounding=_fitted),
    Form("GPTQ and W4A16, groups of 128", 4.125, rounding=partial(_in_groups, 128, _integers)),
    Form("AWQ and GPTQ with zeros, groups of 128", 4.1875, rounding=partial(_in_groups, 128, _with_zeros)),
    Form("NVFP4", 4.5, rounding=_nvfp4),
    Form("MXFP4", 4.25, rounding=partial(_in_groups, BLOCK, _mxfp4)),
)


class RoundedWeights(Weights):
    """The tensors of a checkpoint, with the matrices that methods quantize rounded to a form."""

    def __init__(self, directory: Path, rounding: Rounding | None) -> None:
        super().__init__(directory)
        named = dict(matrices(load_model_config(directory)))
        self._rounded = {f"{name}.weight" for name in named if name != "lm_head"}
        self._rounding = rounding

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return the tensor, rounded if it is one of those matrices."""
        if self._rounding is None or name not in self._rounded:
            return super().take(name, shape, dtype, device)
        return self._rounding(super().take(name, shape, torch.float32, device)).to(dtype)


def log_probabilities(
    directory: Path, texts: list[list[int]], form: Form | None, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Return the log-probabilities [positions, vocabulary] of all texts; None = the weights as they are."""
    rounding = None if form is None else form.rounding
    model = HybridModel(
        load_model_config(directory), RoundedWeights(directory, rounding), device=CPU, dtype=dtype,
        quantization="none" if form is None else form.quantization,
    )  # fmt: skip
    rows = []
    for tokens in texts:
        pages = -(-len(tokens) // PAGE)
        cache = batches.poisoned_views(model.config, slabs=2, pages=pages + 1, page_size=PAGE, dtype=dtype)
        driver = batches.Driver(model, cache, guard=False)
        sequence = batches.Sequence(tokens, slot=1, pages=[*range(1, pages + 1)])
        for first in range(0, len(tokens), PIECE):
            run = batches.Run(sequence, min(PIECE, len(tokens) - first), logits="all")
            rows.append(driver.step([run]).float().log_softmax(-1))
    return torch.cat(rows)


def distance(base: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Return the mean KL(base || other) in nats, and the share of positions with the same best token."""
    kl = (base.exp() * (base - other)).sum(-1).mean().item()
    return kl, (base.argmax(-1) == other.argmax(-1)).float().mean().item()


def conversations() -> list[list[int]]:
    """Return the samples beside the shipped model, as one text for each conversation."""
    samples = json.loads((SHIPPED / "samples.json").read_text())
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    template = jinja2.Template((SHIPPED / "chat_template.jinja").read_text())
    words = [{"role": "user", "content": samples["document"]}, {"role": "assistant", "content": "OK."}]
    for each in samples["questions"]:
        words.append({"role": "user", "content": each["question"]})
        words.append({"role": "assistant", "content": each["answer"]})
    chats = [words, *(chat["messages"] for chat in samples["chats"])]
    texts = [template.render(messages=turns) for turns in chats]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def main() -> None:
    """Measure all forms of both models and keep the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantization_kl", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--checkpoint", type=Path, help="a 263M model; default: a random one is written")
    parser.add_argument("--only", choices=MODELS, help="measure one of the models alone")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of that model's text (%(default)s)")
    options = parser.parse_args()
    random_text = torch.randint(3, 32_000, (options.tokens,), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        models: dict[str, tuple[Path, list[list[int]]]] = {}
        if options.only != "263M":
            models["shipped"] = SHIPPED, conversations()
        if options.only != "shipped":
            large = options.checkpoint or random_checkpoint(Path(folder) / "263m", CONFIG, "bfloat16")
            models["263M"] = large, [random_text.tolist()]
        results: dict[str, dict[str, Any]] = {}
        for name, (directory, texts) in models.items():
            base = log_probabilities(directory, texts, None)
            exact = log_probabilities(directory, texts, None, torch.float32)
            forms = {"bfloat16, of float32": distance(exact, base)}
            for form in FORMS:
                forms[form.words] = distance(base, log_probabilities(directory, texts, form))
                print(name, form.words, forms[form.words], flush=True)
            results[name] = {
                "positions": sum(map(len, texts)),
                "forms": {words: {"kl": kl, "same": same} for words, (kl, same) in forms.items()},
            }
    bits = {"bfloat16, of float32": 16.0, **{form.words: form.bits for form in FORMS}}
    write("quantization-kl", {"bits": bits, "models": results}, ["", *table(bits, results)])


def table(bits: dict[str, float], models: dict[str, Any]) -> list[str]:
    """Return the lines of the table."""
    names = list(models)
    columns = [f"{name}: KL | best token kept" for name in names]
    lines = [f"| weights | bits | {' | '.join(columns)} |", f"| --- | --- |{' --- |' * (2 * len(names))}"]
    for words, of_weight in bits.items():
        cells = [models[name]["forms"][words] for name in names]
        numbers = " | ".join(f"{cell['kl']:.2g} | {cell['same']:.1%}" for cell in cells)
        lines.append(f"| {words} | {of_weight:g} | {numbers} |")
    return lines


if __name__ == "__main__":
    main()
