"""The seeded defects: exact replacements in the source, and the tests that have to notice.

Each is a defect that this kind of engine has had somewhere; a replacement whose text is gone fails loudly.
"""

from dataclasses import dataclass

CACHE, ENGINE = "server/mamba_server/cache/", "server/mamba_server/engine/"
UNIT = "tests/unit/cache"
RUNS = "tests/properties/test_engine_random.py::test_every_token_is_the_one_served_alone_whatever_happens"
ARRAYS = "tests/unit/engine/test_step_arrays.py"


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in `path`. `tests` run in order until one fails."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = (UNIT, RUNS)


MUTANTS = (
    Mutant(
        "a slot is free before its fence", CACHE + "arena.py",
        "                if fence > self.completed:\n                    waiting_pages",
        "                if False:\n                    waiting_pages",
    ),
    Mutant(
        "the table needs no fence before a checkpoint is ready", CACHE + "slot_life.py",
        "(SlotState.TRACK_PENDING, SlotState.TRACK_READY): True",
        "(SlotState.TRACK_PENDING, SlotState.TRACK_READY): False",
    ),
    Mutant(
        "memory of an ended sequence comes back before its last step", CACHE + "state_cache.py",
        "if holding.last_step > self.arena.completed:", "if False:",
    ),
    Mutant(
        "a ping-pong slot is taken from the wrong end", CACHE + "state_cache.py",
        "slot = holding.ready.pop(0).slot\n            self.arena.move",
        "slot = holding.ready.pop().slot\n            self.arena.move",
    ),
    Mutant(
        "a decode checkpoint is one token too deep", CACHE + "state_cache.py",
        "Checkpoint(holding.depth + 1, slot)", "Checkpoint(holding.depth + 2, slot)",
    ),
    Mutant(
        "the chunk grid is relative to the piece", CACHE + "chunk_plan.py",
        "range((start // chunk + 1) * chunk, stop, chunk)", "range(start + chunk, stop, chunk)",
    ),
    Mutant(
        "a checkpoint depth is not forced into the chunk grid", CACHE + "chunk_plan.py",
        "for depth in forced if start < depth <= stop)",
        "for depth in forced if start < depth <= stop and depth % chunk == 0)",
        (UNIT, ARRAYS),
    ),
    Mutant(
        "a slot is donated without asking whether its step is complete", CACHE + "state_cache.py",
        "if pending.step > step:", "if False:",
    ),
    Mutant(
        "the parent of a split keeps a state", CACHE + "tree.py",
        "upper.priority = child.priority", "upper.priority = child.priority\n        upper.slot = child.slot",
    ),
    Mutant(
        "a split forgets the page locks", CACHE + "tree.py",
        "upper.kv_lock = child.kv_lock", "upper.kv_lock = 0",
    ),
    Mutant(
        "the lock of a resumed checkpoint is released at launch", CACHE + "state_cache.py",
        "        holding.slot_in = holding.live\n",
        "        holding.slot_in = holding.live\n        if holding.match_node is not None:\n"
        "            self.tree.unlock_state(holding.match_node)\n            holding.match_node = None\n",
    ),
    Mutant(
        "a match is not locked before room is made", CACHE + "state_cache.py",
        "            self.tree.lock(match.node, state=True)\n        grant = self.room.allocate(",
        "            pass\n        grant = self.room.allocate(",
    ),
    Mutant(
        "eviction begins although it cannot be enough", CACHE + "room.py",
        "and self._can_make(slots, pages):", "and True:",
    ),
    Mutant(
        "a preempted sequence keeps its row", ENGINE + "scheduler.py",
        "        self.rows.give_back(sequence)\n", "        self.rows._free.append(sequence.row)\n",
    ),
    Mutant(
        "a preempted sequence keeps its holding", ENGINE + "scheduler.py",
        "        sequence.holding = None\n", "        pass\n",
    ),
    Mutant(
        "the live slot is donated at the depth that was asked for", CACHE + "state_cache.py",
        "if holding.depth == usable and usable and usable % self.page_size == 0:",
        "if usable and usable % self.page_size == 0:",
    ),
    Mutant(
        "a stop string donates what lies behind it", CACHE + "state_cache.py",
        "fitting = [each for each in holding.ready if each.depth <= usable]", "fitting = list(holding.ready)",
    ),
    Mutant(
        "a whole prompt is resumed at its own length", CACHE + "tree.py",
        "limit = len(tokens) - 1", "limit = len(tokens)",
    ),
    Mutant(
        "a checkpoint is hit in the step that makes it", CACHE + "tree.py",
        "if child.produced_step >= step:", "if False:",
    ),
    Mutant(
        "a duplicate is not given back", CACHE + "state_cache.py",
        "            self.arena.free_slot(checkpoint.slot)\n            self.counters.duplicates += 1",
        "            self.counters.duplicates += 1",
    ),
    Mutant(
        "pages replaced by the tree's are freed at once", CACHE + "state_cache.py",
        "self.arena.free_pages_of(spare, holding.last_step, PageOwner.SEQUENCE)",
        "self.arena.free_pages_of(spare, 0, PageOwner.SEQUENCE)",
    ),
    Mutant(
        "a decode batch keeps the replaced page ids", ENGINE + "core.py",
        "if sequence.phase is Phase.DECODE:\n                    self.scheduler.rows.load_pages(sequence)",
        "if False:\n                    self.scheduler.rows.load_pages(sequence)",
    ),
    Mutant(
        "the work of a failed step is cached", ENGINE + "core.py",
        "        self.cache.distrust(schedule.step)\n", "",
    ),
    Mutant(
        "a salt is not looked at", CACHE + "tree.py",
        "root = self.roots.get(salt)", "root = self.roots.get(salt) or next(iter(self.roots.values()), None)",
    ),
    Mutant(
        "the state of a decode is read one row off", ENGINE + "step_arrays.py",
        "slot_in=_join(rows.live[row],", "slot_in=_join(rows.live[np.roll(row, 1)],", (ARRAYS,),
    ),
    Mutant(
        "keys and values go one token late", ENGINE + "step_arrays.py",
        "* page_size + positions % page_size", "* page_size + (positions + 1) % page_size", (ARRAYS,),
    ),
    Mutant(
        "the convolution window is one token late", "kernels/mamba_kernels/conv1d_prefill/reference.py",
        "window[slot] = inputs[rows : rows + K - 1]",
        "window[slot] = inputs[max(0, rows - 1) : max(0, rows - 1) + K - 1]",
        ("tests/unit/kernels/test_conv1d.py",),
    ),
    Mutant(
        "an evicted checkpoint takes along pages that a running sequence reads", CACHE + "tree.py",
        "if each.slot or each.kv_lock:", "if each.slot:",
    ),
    Mutant(
        "pages that no checkpoint reaches are spared for ever", CACHE + "room.py",
        "            elif spare_leaves:\n                spare_leaves = False\n", "",
    ),
    Mutant(
        "an admission trusts what was matched before the last one", ENGINE + "scheduler.py",
        "            matches.clear()\n", "", ("tests/unit/engine/test_scheduler.py",),
    ),
    Mutant(
        "a dropped checkpoint stays on the list of victims", CACHE + "tree.py",
        "        node.stamp += 1\n        if node.ghost", "        if node.ghost",
    ),
    Mutant(
        "a prompt waits for one whose prefill has ended", ENGINE + "shared_prefix.py",
        "        if self.leader.holding is not self.holding:\n            return False\n", "",
        ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "prompts of two salts wait for each other", ENGINE + "shared_prefix.py",
        "    if one.salt != other.salt:\n        return 0\n", "",
        ("tests/unit/engine/test_shared_prefix.py",),
    ),
    Mutant(
        "a checkpoint is weighed without the bytes it takes", CACHE + "eviction.py",
        "slabs = 1 + pages / self._pages_per_slab if self._pages_per_slab else 1.0", "slabs = 1.0",
        (UNIT,),
    ),
    Mutant(
        "the checkpoint above an evicted one inherits nothing", CACHE + "eviction.py",
        "        self.inherit(node.above(), node.ghost)\n", "        pass\n", (UNIT,),
    ),
    Mutant(
        "the ghost tree grows without bound", CACHE + "ghosts.py",
        "while self.bytes > self.most_bytes and", "while False and", (UNIT,),
    ),
    Mutant(
        "the end of an answered turn counts as an end still", CACHE + "ghosts.py",
        "            ghost.uses += 1\n", "            pass\n", (UNIT,),
    ),
    Mutant(
        "a branch is sought in resident pages alone", CACHE + "state_cache.py",
        "return (*branches, shared, *(depth for _, depth in known))",
        "return (*branches, match.kv_depth)", (UNIT,),
    ),
    Mutant(
        "ages never change", CACHE + "ghosts.py",
        "        aged = list(self._age())\n", "        aged: list[Ghost] = []\n", (UNIT,),
    ),
    Mutant(
        "a class is believed however badly it foretells", CACHE + "returns.py",
        "or self.score > -SLACK else", "or True else", (UNIT,),
    ),
    Mutant(
        "an evicted checkpoint is still named by its ghost", CACHE + "tree.py",
        "            node.ghost.node = node.ghost.heir = None\n", "            pass\n", (UNIT,),
    ),
)  # fmt: skip
