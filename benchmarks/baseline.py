"""The baseline: transformers `generate` with static batches, on the same checkpoint and the same prompts.

Times come from a logits processor, which generate calls once a step: the first call is the first token.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.samples import Sample


class Baseline:
    """One loaded model; batches as large as the concurrency it is compared at."""

    def __init__(self, model: Path, device: str, dtype: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._torch, self._device = torch, device
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self._model: Any = loaded.to(device).eval()

    def outputs(self, prompt: LoadPrompt) -> list[int]:
        """Return the greedy tokens of one prompt."""
        generated, _ = self._generate([prompt])
        return [int(token) for token in generated[0][len(prompt.token_ids) :]]

    def run(self, prompts: Sequence[LoadPrompt], batch: int) -> list[Sample]:
        """Serve the prompts, which have equal lengths, in batches of `batch`, one batch after the other.

        Every request waits from the start of its batch: the time before that is the client's (closed loop).
        """
        start, samples = time.monotonic(), list[Sample]()
        for first in range(0, len(prompts), batch):
            group = prompts[first : first + batch]
            begin = time.monotonic()
            _, times = self._generate(group)
            gaps = tuple(after - before for before, after in pairwise(times))
            samples += [
                Sample(
                    sent=begin - start,
                    end=times[-1] - start,
                    ttft=times[0] - begin,
                    itl=gaps,
                    prompt_tokens=len(prompt.token_ids),
                    output_tokens=prompt.output_tokens,
                )
                for prompt in group
            ]
        return samples

    def _generate(self, prompts: Sequence[LoadPrompt]) -> tuple[Any, list[float]]:
        torch, times = self._torch, list[float]()

        def clock(_ids: Any, scores: Any) -> Any:
            if self._device == "cuda":
                torch.cuda.synchronize()
            times.append(time.monotonic())
            return scores

        count = prompts[0].output_tokens
        ids = torch.tensor([prompt.token_ids for prompt in prompts], device=self._device)
        with torch.inference_mode():
            generated = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                logits_processor=[clock],
                pad_token_id=0,
            )
        return generated, times
