"""Engines that gain and lose checkpoints at random, and a gateway's copy that has to follow them all.

The engines are change logs with a publisher each, as in an API process; what happens to them and to the Redis
between is drawn. In the end all is left alone for some seconds, and then the copy says what the engines have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from mamba_prefix.change_log import ChangeLog
from mamba_prefix.engine_banks import MAX_ENGINES
from mamba_prefix.follower import Follower
from mamba_prefix.messages import pack_entries, pack_hashes
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.publisher import Publisher
from mamba_prefix.store import Store


class EngineModel:
    """One engine and its publisher; `kill` ends both as a crash of the pod does."""

    def __init__(self, name: str, store: Store, rng: Random) -> None:
        self.name = name
        self.log = ChangeLog(name, wall=lambda: 0.0, new_incarnation=lambda: f"{rng.getrandbits(64):x}")
        self.tree: dict[int, int] = {}
        self.pages: set[int] = set()
        self.publisher = Publisher(self.log, store, rng.random)
        self.task = asyncio.create_task(self.publisher.run())
        self._rng = rng
        self.log.start("model", 16)

    def change(self, count: int) -> int:
        """Apply random gains and losses as one batch of the engine process; return their number."""
        gained: dict[int, int] = {}
        lost: set[int] = set()
        for _ in range(count):
            if self.tree and self._rng.random() < 0.45:
                each = self._rng.choice(list(self.tree)[:50])
                del self.tree[each]
                if gained.pop(each, None) is None:
                    lost.add(each)
            else:
                # Few enough that engines have some in common, and one comes again.
                each, depth = self._rng.randrange(1, 2000), 16 * self._rng.randrange(1, 100)
                if each not in self.tree and each not in lost:
                    self.tree[each] = gained[each] = depth
        drawn = {self._rng.randrange(1, 2000) for _ in range(count)}
        self.pages ^= drawn
        self.log.take(
            self.log.epoch, cleared=False, gained=pack_entries(gained), lost=pack_hashes(lost),
            pages_gained=pack_hashes(drawn & self.pages), pages_lost=pack_hashes(drawn - self.pages),
        )  # fmt: skip
        return len(gained) + len(lost) + len(drawn)

    def flush(self) -> None:
        """Remove all checkpoints that no sequence holds."""
        self.tree = {each: depth for each, depth in self.tree.items() if self._rng.random() < 0.1}
        self.pages = {each for each in sorted(self.pages) if self._rng.random() < 0.1}
        self.log.take(
            self.log.epoch + 1, cleared=True, gained=pack_entries(self.tree), lost=b"",
            pages_gained=pack_hashes(self.pages),
        )  # fmt: skip

    def restart_process(self) -> None:
        self.log.lose()
        self.tree, self.pages = {}, set()
        self.log.start("model", 16)

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class IndexWorld:
    """Some engines and one gateway, each with a store of its own from `connect`."""

    def __init__(self, connect: Callable[[], Store], rng: Random, most_engines: int = MAX_ENGINES) -> None:
        self.connect = connect
        self.rng = rng
        self.engines: dict[str, EngineModel] = {}
        self.index = PrefixIndex(most_engines=most_engines)
        self.follower = Follower(self.index, connect(), rng.random)
        self.task = asyncio.create_task(self.follower.run())

    def start(self, name: str) -> EngineModel:
        self.engines[name] = engine = EngineModel(name, self.connect(), self.rng)
        return engine

    def new_gateway(self) -> None:
        """Replace this copy by an empty one."""
        self.task.cancel()
        self.index = PrefixIndex()
        self.follower = Follower(self.index, self.connect(), self.rng.random)
        self.task = asyncio.create_task(self.follower.run())

    @property
    def false_positives(self) -> int:
        """Count the entries that the copy ascribes to an engine wrongly."""
        return sum(
            len(set(self.index.hashes_of(name).tolist()) - set(engine.tree))
            + len(set(self.index.pages_of(name).tolist()) - engine.pages)
            for name, engine in self.engines.items()
        )

    @property
    def agrees(self) -> bool:
        """The copy says of each engine what its tree has, and knows of no other engine."""
        views = self.index.engines()
        return (
            self.index.state == "following"
            and views.keys() == self.engines.keys()
            and all(
                set(self.index.hashes_of(name).tolist()) == set(engine.tree)
                and set(self.index.pages_of(name).tolist()) == engine.pages
                and views[name].epoch == engine.log.epoch
                and views[name].incarnation == engine.log.incarnation
                and views[name].entries == len(engine.tree)
                and views[name].pages == len(engine.pages)
                for name, engine in self.engines.items()
            )
        )

    async def close(self) -> None:
        for engine in self.engines.values():
            await engine.kill()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
