"""A prompt computed by one engine and answered by another gives the bits of one engine that does both.

The matrix is every served family, strategy, overlap, page size, chunk, hits on either side, preemptions, and
memory that is refused just after an install. All of its 8,640 rows would take a processor two hours. So `make
gates` runs so many that every four values of different factors occur together, and the slow tests so many
that every pair of values of the cache occurs, each with the next family.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from covering import covering
from engines import run
from eventually import PATIENCE
from gate_cases import LARGE, STRATEGIES, Case
from hand_over_requests import Answers, assert_same_bits, handed, prompts_of, warm_up
from joined_engines import Joined, joined, with_source
from mamba_api.choices import FP8_PAGES
from mamba_server.cache.arena import AllocationSite
from mamba_server.engine.transfers import start
from testmodels.checkpoints import (
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_kimi_linear,
    random_lfm2,
    random_mamba2,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_5,
    random_qwen3_next,
    random_zamba2,
)

pytestmark = pytest.mark.slow

LEASE_SECONDS = 3600.0
"""Lease that ends in no test: whoever needs no export says so."""


def shipped(_: Path) -> Path:
    import mamba_server

    assert mamba_server.__file__ is not None
    return Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"


def granite_experts(path: Path) -> Path:
    return random_granite(path, num_local_experts=8, num_experts_per_tok=3)


MODELS: dict[str, Callable[[Path], Path]] = {
    "shipped": shipped,
    "nemotron_h": random_nemotron_h,
    "granite_experts": granite_experts,
    "bamba": random_bamba,
    "falcon_h1": random_falcon_h1,
    "mamba2": random_mamba2,
    "qwen3_next": random_qwen3_next,
    "qwen3_5": random_qwen3_5,
    "lfm2": random_lfm2,
    "olmo_hybrid": random_olmo_hybrid,
    "zamba2": random_zamba2,
    "kimi_linear": random_kimi_linear,
}
EXACT = ("qwen3_next", "qwen3_5", "olmo_hybrid", "kimi_linear")
"""Models whose sums depend on the batch: they run in 64 bits, and their tokens are compared."""
FACTORS = (
    STRATEGIES, (True, False), (1, 16, 64), (48, 64, 128),
    ("neither", "prefill", "decode", "both"), (False, True), (False, True),
)  # fmt: skip
ROWS = (
    covering(tuple(MODELS), *FACTORS, strength=4)
    if LARGE
    else [(model, *row) for model, row in zip(cycle(MODELS), covering(*FACTORS), strict=False)]
)
if not LARGE:
    # A failed borrow needs a lazy strategy and boundaries of pages while decoding.
    ROWS += [(model, "ExtraBufferLazy", True, 1, 64, "both", False, True) for model in ("shipped",)]
ROWS = [
    *((*row, "auto") for row in ROWS),
    # Pages of FP8, whose scales travel with the numbers: hits, preemptions and refused memory once each.
    ("shipped", "ExtraBuffer", True, 16, 64, "both", False, False, FP8_PAGES),
    ("falcon_h1", "ExtraBufferLazy", False, 64, 128, "decode", True, False, FP8_PAGES),
    ("kimi_linear", "NoBuffer", True, 16, 48, "prefill", False, True, FP8_PAGES),
]


class Models:
    """Checkpoints and the answers of one engine, each computed when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[str, Path] = {}
        self._answers: dict[tuple[str, str], Answers] = {}

    def path(self, name: str) -> Path:
        if name not in self._paths:
            self._paths[name] = MODELS[name](self._folder / name)
        return self._paths[name]

    def answers(self, name: str, pages: str) -> Answers:
        if (name, pages) not in self._answers:
            case = Case("ExtraBuffer", False, 16, 64)
            engine = case.boot(self.path(name), kv_cache_dtype=pages, **settings_of(name))
            self._answers[name, pages] = run(engine, prompts_of(1))
        return self._answers[name, pages]


@pytest.fixture(autouse=True)
def patient_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a message that gives an export up take as long as the test waits: no lease ends here."""
    monkeypatch.setattr(start, "TELL_SECONDS", PATIENCE)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("matrix"))


def settings_of(name: str) -> dict[str, object]:
    return {"exact": True} if name in EXACT else {"batch_invariant": True, "dtype": "float32"}


class FailsAfterInstall:
    """Memory that is refused after each state that was installed, once for each reason to allocate."""

    def __init__(self) -> None:
        self.refused: Counter[AllocationSite] = Counter()
        self._next: set[AllocationSite] = set()

    def watch(self, engine: Joined) -> None:
        cache = engine.core.cache
        install = cache.install

        def watched(*arguments: object) -> bool:
            self._next = set(AllocationSite) - {AllocationSite.RECEIVE}
            return install(*arguments)  # type: ignore[arg-type]

        cache.install = watched  # type: ignore[method-assign]

    def __call__(self, site: AllocationSite) -> bool:
        if site not in self._next:
            return False
        self._next.remove(site)
        self.refused[site] += 1
        return True


@pytest.mark.parametrize(
    ("model", "strategy", "overlap", "page_size", "chunk", "hits", "preempts", "fails", "pages"), ROWS
)
def test_an_answer_after_a_hand_over_is_that_of_one_engine(
    models: Models,
    model: str,
    strategy: str,
    overlap: bool,
    page_size: int,
    chunk: int,
    hits: str,
    preempts: bool,
    fails: bool,
    pages: str,
) -> None:
    expected, requests = models.answers(model, pages), prompts_of(1)
    case, faults, rng = Case(strategy, overlap, page_size, chunk), FailsAfterInstall(), random.Random(3)
    settings = {"kv_cache_dtype": pages, **settings_of(model)}
    prefill, decode = (
        Joined(
            case.boot(models.path(model), fail=faults if fails and is_decode else None, **settings),
            transfer_lease=LEASE_SECONDS,
        )
        for is_decode in (False, True)
    )

    def disturb(engine: Joined) -> Callable[[], object]:
        return lambda: preempts and rng.random() < 0.2 and engine.core.scheduler.preempt_youngest()

    with joined(prefill, decode):
        for engine, name in ((prefill, "prefill"), (decode, "decode")):
            if hits in (name, "both"):
                warm_up(engine, requests)
        faults.watch(decode)
        for request in requests:
            prefill.add(handed(request))
        prefill.until(lambda: prefill.core.idle, before_step=disturb(prefill))
        for request in requests:
            depth = (len(request.token_ids) - 1) // page_size * page_size
            assert prefill.handed[request.request_id].depth == depth
            decode.add(with_source(request, prefill))
        decode.until(lambda: decode.core.idle, prefill, before_step=disturb(decode))
        got = {key: decode.answers[key] for key in expected}
        if model in EXACT:
            assert {key: each.tokens for key, each in got.items()} == {
                key: each.tokens for key, each in expected.items()
            }
        else:
            assert_same_bits(got, expected)
        if not (preempts or fails):
            depths = [(len(request.token_ids) - 1) // page_size * page_size for request in requests]
            assert [got[request.request_id, 0].cached_tokens for request in requests] == depths
        assert decode.outcomes("in")["valid"]
        if fails:
            assert faults.refused[AllocationSite.ADMIT]
            if strategy == "ExtraBufferLazy" and page_size == 1:
                assert faults.refused[AllocationSite.BORROW]
        for engine in (prefill, decode):
            engine.check_empty(prefill, decode)
