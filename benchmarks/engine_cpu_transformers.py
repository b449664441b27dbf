"""The steps of `engine_cpu_steps` by transformers, asked for and answered in the same way.

The convolution and the scan are its plain ones, for its kernels need a GPU.
"""

import json
import sys
import time
from typing import Any

import torch
from benchmarks.engine_cpu_steps import CONTEXT


class StepTimer:
    """A model as transformers loads it, and for decodes a cache that each step makes longer by a token."""

    def __init__(self, directory: str, dtype: str, threads: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))

    @torch.inference_mode()
    def measure(self, kind: str, count: int) -> dict[str, Any]:
        """Measure one step, after one that warms up."""
        if kind == "prefill":
            tokens = torch.arange(count)[None] % 200 + 5

            def step() -> object:
                return self.model(tokens, use_cache=True, logits_to_keep=1)
        else:
            prompt = (torch.arange(CONTEXT - 1) % 200 + 5).expand(count, -1)
            cache = self.model(prompt, use_cache=True, logits_to_keep=1).past_key_values
            one = prompt[:, :1]

            def step() -> object:
                return self.model(one, past_key_values=cache, use_cache=True)

        step()
        processor, wall = time.process_time(), time.perf_counter()
        step()
        return {"processor": time.process_time() - processor, "wall": time.perf_counter() - wall}


def main() -> None:
    directory, dtype, threads = sys.argv[1:]
    steps = StepTimer(directory, dtype, int(threads))
    print("transformers", flush=True)
    for line in sys.stdin:
        kind, count = line.split()
        print(json.dumps(steps.measure(kind, int(count))), flush=True)


if __name__ == "__main__":
    main()
