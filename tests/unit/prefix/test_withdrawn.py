"""Claims that an engine did not honour are withdrawn until the engine publishes them again."""

from random import Random

import numpy as np
import pytest

from mamba_prefix.change_log import ChangeLog
from mamba_prefix.messages import Change, pack_entries, pack_hashes
from mamba_prefix.page_chain import PageChain
from mamba_prefix.prefix_index import Depths, PrefixIndex
from mamba_prefix.recent_gains import RecentGains

PAGE = 16
CHAIN = PageChain(PAGE, "model")
PROMPT = np.arange(1, 200, dtype=np.int32)
HASHES = CHAIN.hashes(PROMPT, "").tolist()


class Engine:
    """Engine that publishes to a copy; `log` holds everything published."""

    def __init__(self, index: PrefixIndex, name: str = "a") -> None:
        self.index, self.log = index, ChangeLog(name, wall=lambda: 0.0)
        self.log.start("model", PAGE)
        self.snapshot()

    def snapshot(self) -> None:
        assert self.index.take_snapshot(self.log.snapshot())

    def tell(self, gained: dict[int, int], lost: set[int], *, cleared: bool = False) -> Change:
        seq, epoch = self.log.seq, self.log.epoch + cleared
        self.log.take(epoch, cleared=cleared, gained=pack_entries(gained), lost=pack_hashes(lost))
        changes = self.log.since(self.log.incarnation, seq)
        assert changes is not None
        assert self.index.take_change(changes[0]) == "taken"
        return changes[0]

    def gain(self, *pages: int) -> None:
        self.tell({HASHES[page - 1]: page * PAGE for page in pages}, set())

    def lose(self, *pages: int) -> None:
        self.tell({}, {HASHES[page - 1] for page in pages})


def depth(index: PrefixIndex, engine: str = "a") -> int:
    return index.depths(PROMPT, "").resumable.get(engine, 0)


def withdraw(index: PrefixIndex, resumed: int, said: Depths, engine: str = "a") -> bool:
    return index.withdraw(engine, PROMPT, "", resumed, said)


def test_what_is_deeper_than_was_resumed_is_gone_and_what_is_not_stays() -> None:
    index = PrefixIndex()
    one, other = Engine(index), Engine(index, "b")
    one.gain(2, 5, 9)
    other.gain(9)
    assert withdraw(index, 2 * PAGE, index.depths(PROMPT, ""))
    assert index.depths(PROMPT, "").resumable == {"a": 2 * PAGE, "b": 9 * PAGE}
    assert index.engines()["a"].entries == 1


@pytest.mark.parametrize("how", ["gained", "snapshot", "epoch", "incarnation"])
def test_it_is_believed_again_once_the_engine_says_so(how: str) -> None:
    index = PrefixIndex()
    engine = Engine(index)
    engine.gain(5)
    assert withdraw(index, 0, index.depths(PROMPT, ""))
    engine.lose(1)  # of something else
    assert depth(index) == 0
    if how == "gained":
        engine.gain(5)
    elif how == "snapshot":
        engine.snapshot()
    elif how == "epoch":
        engine.tell({HASHES[4]: 5 * PAGE}, set(), cleared=True)
    else:
        engine = Engine(index)
        engine.gain(5)
    assert depth(index) == 5 * PAGE
    assert index.engines()["a"].entries == 1


@pytest.mark.parametrize("how", ["gained", "lost", "snapshot", "gone", "restarted"])
def test_what_the_copy_heard_after_it_said_so_wins(how: str) -> None:
    index = PrefixIndex()
    engine = Engine(index)
    engine.gain(5)
    said = index.depths(PROMPT, "")
    if how == "gained":
        # The request itself has left it there before it was answered.
        engine.lose(5)
        engine.gain(5)
    elif how == "lost":
        engine.lose(5)
    elif how == "snapshot":
        engine.snapshot()
    elif how == "gone":
        index.drop("a")
    else:
        Engine(index).gain(5)
    known = index.hashes_of("a").tolist()
    assert not withdraw(index, 0, said)
    assert index.hashes_of("a").tolist() == known


def test_nothing_is_withdrawn_when_it_is_forgotten_what_came_since() -> None:
    gains = RecentGains(most=4)
    gains.add(1, np.array([1, 2], np.uint64))
    gains.add(2, np.array([3, 4], np.uint64))
    found = gains.after(1)
    assert found is not None
    assert found.tolist() == [3, 4]
    gains.add(3, np.array([5], np.uint64))
    assert gains.after(0) is None
    found = gains.after(1)
    assert found is not None
    assert sorted(found.tolist()) == [3, 4, 5]
    gains.add(4, np.arange(10, 20, dtype=np.uint64))
    assert gains.after(3) is None
    assert gains.after(4) is not None


@pytest.mark.parametrize("seed", range(5))
def test_no_withdrawn_depth_is_believed_before_it_is_published_and_publication_restores_the_truth(
    seed: int,
) -> None:
    rng, index = Random(seed), PrefixIndex()
    engine = Engine(index)
    tree, told, withdrawn = set[int](), set[int](), set[int]()
    asked: list[tuple[Depths, set[int]]] = []
    """Answers of the copy, and the gains that the engine has published since."""

    def publish(gained: set[int], lost: set[int], *, cleared: bool = False) -> None:
        engine.tell(
            {HASHES[page - 1]: page * PAGE for page in gained},
            {HASHES[page - 1] for page in lost},
            cleared=cleared,
        )
        told.difference_update(set(told) if cleared else lost)
        told.update(gained)
        withdrawn.difference_update(set(withdrawn) if cleared else gained | lost)
        for _, since in asked:
            since |= gained

    for _ in range(100):
        match rng.randrange(8):
            case 0 | 1:
                gained = {rng.randrange(1, len(HASHES) + 1) for _ in range(2)} - tree
                tree |= gained
                publish(gained, set())
            case 2:
                lost = {page for page in tree if rng.random() < 0.3}
                tree -= lost
                publish(set(), lost)
            case 3:  # and the index does not hear of it
                tree -= {page for page in tree if rng.random() < 0.3}
            case 4 | 5:
                asked.append((index.depths(PROMPT, ""), set()))
            case 6 if asked:
                said, since = asked.pop(rng.randrange(len(asked)))
                promised, resumed = said.resumable.get("a", 0), PAGE * max(tree, default=0)
                if resumed < promised:
                    old = {page for page in told if resumed < page * PAGE <= promised} - since - withdrawn
                    assert withdraw(index, resumed, said) == bool(old)
                    withdrawn |= old
            case 7 if rng.random() < 0.2:
                asked.clear()
                publish(tree, set(), cleared=True)
        believed = {HASHES.index(each) + 1 for each in index.hashes_of("a").tolist()}
        assert believed == told - withdrawn
        assert depth(index) == PAGE * max(believed, default=0)
    publish(tree, set(), cleared=True)
    assert {HASHES.index(each) + 1 for each in index.hashes_of("a").tolist()} == tree
