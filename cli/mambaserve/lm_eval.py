"""`MambaserveLM`: the model type `mambaserve` of lm-eval, EleutherAI's evaluation harness.

```sh
python -m mambaserve.lm_eval run --model mambaserve --model_args pretrained=/models/nano --tasks hellaswag
```

The command is lm-eval's own, with all its options and one more model type. A program that imports
this module can name `mambaserve` in `lm_eval.simple_evaluate`. lm-eval comes with the extra `lm-eval`.
"""

import atexit
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from mamba_api.openai_fields import MAX_STOPS
from mamba_cli.extras import missing_extra
from mambaserve.answers import Score
from mambaserve.llm import LLM

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ModuleNotFoundError as error:
    if (missing := missing_extra(error, "mambaserve.lm_eval")) is None:
        raise
    if __name__ == "__main__":
        sys.stderr.write(f"error: {missing}\n")
        sys.exit(missing.exit_code)
    raise ModuleNotFoundError(str(missing), name=error.name) from error

PROMPTS_AT_ONCE = 1024
"""Prompts of one call of the engine: enough to keep it busy, and few enough that their log-probabilities fit
into memory."""
Pair = tuple[Any, list[int], list[int]]
"""Name of a request in a cache of results, tokens of its context, and tokens of its continuation."""


@register_model("mambaserve")
class MambaserveLM(TemplateLM):  # type: ignore[misc]  # lm-eval is in no environment of the type checker
    """A model whose engine runs in a process of its own for as long as the evaluation takes."""

    def __init__(
        self,
        pretrained: str,
        *,
        max_gen_toks: int = 256,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> None:
        """Load a model.

        Args:
            pretrained: directory, OWNER/NAME of the Hub, or builtin://tiny-recall.
            max_gen_toks: most tokens of an answer for tasks that set no limit.
            batch_size: None, 1 or auto, since the engine decides which requests it computes together.
            max_batch_size: None, for the same reason.
            device: cpu or cuda; cuda:0, which lm-eval also passes without the option, leaves the choice to
                the engine.
            settings: further options of `mambaserve serve`, such as `max_model_len=4096`.

        Raises:
            ValueError: batch_size or max_batch_size has another value.
            EngineEnded: the engine could not start; the message says why.
        """
        super().__init__()
        if max_batch_size is not None or str(batch_size or 1).partition(":")[0] not in ("1", "auto"):
            raise ValueError(
                "--batch_size and --max_batch_size: the engine itself decides which requests it computes "
                "together, so leave them out; max_running_requests in --model_args limits their number"
            )
        own: dict[str, Any] = {"device": device} if device not in (None, "cuda:0") else {}
        self._name, self._max_gen_toks = pretrained, max_gen_toks
        self._llm = LLM(pretrained, **own, **settings)
        atexit.register(self._llm.close)

    # --- what lm-eval asks about a model ----------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """Token that ends a text."""
        return self._special("eos")

    @property
    def prefix_token_id(self) -> int:
        """Token that stands before a text without a context."""
        begin = self._llm.special_token_id("bos")
        return self.eot_token_id if begin is None else begin

    @property
    def max_length(self) -> int:
        """Largest number of tokens of a prompt and its answer together."""
        return self._llm.context_tokens

    @property
    def tokenizer_name(self) -> str:
        """Name by which lm-eval tells cached requests apart."""
        return self._name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the token ids of a text, by default with the special tokens that the tokenizer adds."""
        special = add_special_tokens is not False
        tokens = self._llm.tokens(string, special=special)
        begin = self._llm.special_token_id("bos")
        # A chat template may have written the token already.
        if add_special_tokens is None and tokens[:2] == [begin, begin]:
            return tokens[1:]
        return tokens

    def apply_chat_template(
        self, chat_history: list[dict[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation, rendered by the model's chat template."""
        return self._llm.chat_text(chat_history, continue_final=not add_generation_prompt)

    # --- requests ---------------------------------------------------------------------------------------

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, in windows where they are longer than the context."""
        owners, windows = [], []
        for number, request in enumerate(requests):
            for window in get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length - 1, context_len=1
            ):
                owners.append(number)
                windows.append((None, *make_disjoint_window(window)))
        totals = [0.0] * len(requests)
        for number, (total, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[number] += total
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the answers to prompts, each up to the first of its stop strings."""
        texts = [""] * len(requests)
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[json.dumps(request.args[1], sort_keys=True)].append(number)
        with _bar(len(requests), "answers", disable_tqdm) as advance:
            for fields, numbers in groups.items():
                for some in _parts(numbers):
                    contexts = [requests[number].args[0] for number in some]
                    answers = self._answers(contexts, json.loads(fields), advance)
                    for number, text in zip(some, answers, strict=True):
                        texts[number] = text
                        self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return texts

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Return for each continuation its log-likelihood, and whether a greedy answer would be the same."""
        results = []
        with _bar(len(requests), "log-likelihoods", disable_tqdm) as advance:
            for some in _parts(requests):
                wholes = [self._fitting(context, continuation) for _, context, continuation in some]
                scores = self._llm.score(wholes, progress=advance)
                for (name, _, continuation), score in zip(some, scores, strict=True):
                    result = _of_last(score, len(continuation))
                    results.append(result)
                    if name is not None:
                        self.cache_hook.add_partial("loglikelihood", name, result)
        return results

    def _fitting(self, context: list[int], continuation: list[int]) -> list[int]:
        """Return context and continuation, cut at the front if they are too long. Raises ValueError."""
        if len(continuation) >= self.max_length:
            raise ValueError(
                f"a continuation has {len(continuation)} tokens, the model's context {self.max_length}: set "
                "a larger max_model_len in --model_args, or leave the task out"
            )
        return (context + continuation)[-self.max_length :]

    def _answers(self, contexts: list[str], fields: dict[str, Any], advance: Callable[[], None]) -> list[str]:
        kwargs = dict(normalize_gen_kwargs(fields, self._max_gen_toks))
        stops, tokens = [stop for stop in kwargs.pop("until") if stop], int(kwargs.pop("max_gen_toks"))
        kwargs.pop("do_sample")  # the temperature says it
        room = max(1, self.max_length - tokens)
        prompts = [self.tok_encode(context)[-room:] for context in contexts]
        tokens = min(tokens, self.max_length - max(map(len, prompts)))
        answers = self._llm.generate(
            prompts, progress=advance, max_tokens=tokens, stop=stops[:MAX_STOPS], **kwargs
        )
        return [postprocess_generated_text(answer.text, stops, None) for answer in answers]

    def _special(self, name: Literal["bos", "eos"]) -> int:
        if (token := self._llm.special_token_id(name)) is None:
            raise ValueError(
                f"{self._name}: tokenizer_config.json names no {name}_token, which lm-eval needs"
            )
        return token


def _of_last(score: Score, count: int) -> tuple[float, bool]:
    """Return the log-likelihood of the last `count` tokens, and whether each is the likeliest."""
    first = len(score.logprobs) - count
    return sum(score.logprobs[first:]), all(rank == 1 for rank in score.ranks[first:])


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), PROMPTS_AT_ONCE):
        yield items[start : start + PROMPTS_AT_ONCE]


@contextlib.contextmanager
def _bar(total: int, what: str, is_hidden: bool) -> Iterator[Callable[[], None]]:
    """Yield the function that moves a bar of `total` requests by one."""
    with tqdm(total=total, desc=what, disable=is_hidden) as bar:
        yield lambda: bar.update(1)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
