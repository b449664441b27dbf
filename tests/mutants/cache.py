"""Defects of the state cache."""

from seeded import Mutant

CACHE = "server/mamba_server/cache/"
UNIT, ARRAYS = "tests/unit/cache", "tests/unit/engine/test_step_arrays.py"

MUTANTS = (
    Mutant(
        "a slot is free before its fence", CACHE + "arena.py",
        "                if fence > self.completed:\n                    waiting_pages",
        "                if False:\n                    waiting_pages",
    ),
    Mutant(
        "the table needs no fence before a checkpoint is ready", CACHE + "slot_state.py",
        "(SlotState.TRACK_PENDING, SlotState.TRACK_READY): True",
        "(SlotState.TRACK_PENDING, SlotState.TRACK_READY): False",
    ),
    Mutant(
        "memory of an ended sequence comes back before its last step", CACHE + "state_cache.py",
        "if allocation.last_step > self.arena.completed:", "if False:",
    ),
    Mutant(
        "a ping-pong slot is taken from the wrong end", CACHE + "state_cache.py",
        "slot = allocation.ready.pop(0).slot\n            self.arena.move",
        "slot = allocation.ready.pop().slot\n            self.arena.move",
    ),
    Mutant(
        "a decode checkpoint is one token too deep", CACHE + "state_cache.py",
        "Checkpoint(allocation.depth + 1, slot)", "Checkpoint(allocation.depth + 2, slot)",
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
        "        self.batch.launch(rows, depth, step)\n",
        "        self.batch.launch(rows, depth, step)\n"
        "        allocation = self.allocations[rows] if isinstance(rows, int) else None\n"
        "        if allocation is not None and allocation.match_node is not None:\n"
        "            self.tree.unlock_state(allocation.match_node)\n"
        "            allocation.match_node = None\n",
    ),
    Mutant(
        "a match is not locked before room is made", CACHE + "state_cache.py",
        "            self.tree.lock(match.node, state=True)\n        grant = self.reclaimer.allocate(",
        "            pass\n        grant = self.reclaimer.allocate(",
    ),
    Mutant(
        "eviction begins although it cannot be enough", CACHE + "reclaimer.py",
        "and self._can_make_room(slots, pages):", "and True:",
    ),
    Mutant(
        "a row is never given back", CACHE + "state_cache.py",
        "        self.batch.remove(allocation.row)\n", "",
    ),
    Mutant(
        "a row is given to another before the last step of its sequence", CACHE + "state_cache.py",
        "            self._retiring.append(_RetiringSequence(",
        "            self.batch._free.append(allocation.row)\n"
        "            self._retiring.append(_RetiringSequence(",
    ),
    Mutant(
        "a row begins with what the last sequence left in it", CACHE + "persistent_batch.py",
        "        self.last_step[row] = 0\n", "",
    ),
    Mutant(
        "the live slot is donated at the depth that was asked for", CACHE + "state_cache.py",
        "if deep and allocation.depth == usable and usable and usable % self.page_size == 0:",
        "if deep and usable and usable % self.page_size == 0:",
    ),
    Mutant(
        "a stop string donates what lies behind it", CACHE + "state_cache.py",
        "fitting = [each for each in allocation.ready if each.depth <= usable]",
        "fitting = list(allocation.ready)",
    ),
    Mutant(
        "a whole prompt is resumed at its own length", CACHE + "tree.py",
        "limit = len(token_ids) - 1", "limit = len(token_ids)",
    ),
    Mutant(
        "a checkpoint is hit in the step that makes it", CACHE + "tree.py",
        "if child.produced_step >= step:", "if False:",
    ),
    Mutant(
        "a duplicate is not given back", CACHE + "donation.py",
        "            self._arena.free_slot(checkpoint.slot)\n            self._counters.duplicates += 1",
        "            self._counters.duplicates += 1",
    ),
    Mutant(
        "pages replaced by the tree's are freed at once", CACHE + "donation.py",
        "self._arena.free_pages_of(spare, allocation.last_step, PageOwner.SEQUENCE)",
        "self._arena.free_pages_of(spare, 0, PageOwner.SEQUENCE)",
    ),
    Mutant(
        "a sequence keeps the page ids that the tree replaced", CACHE + "donation.py",
        "            allocation.replace_pages(of_tree)\n", "",
    ),
    Mutant(
        "a salt is not looked at", CACHE + "tree.py",
        "root = self.roots.get(salt)", "root = self.roots.get(salt) or next(iter(self.roots.values()), None)",
    ),
    Mutant(
        "an evicted checkpoint takes along pages that a running sequence reads", CACHE + "tree.py",
        "if each.slot or each.kv_lock:", "if each.slot:",
    ),
    Mutant(
        "pages that no checkpoint reaches are spared for ever", CACHE + "reclaimer.py",
        "eviction.pop_checkpoint() or eviction.pop_bare_node()", "eviction.pop_checkpoint()",
    ),
    Mutant(
        "all pages that no checkpoint reaches go at once", CACHE + "reclaimer.py",
        "if pages > self.arena.partial_pages else None", "if pages else None",
    ),
    Mutant(
        "pages whose checkpoint went while they were in use stay", CACHE + "state_cache.py",
        "                self.reclaimer.drop_upwards(allocation.node)\n", "                pass\n",
    ),
    Mutant(
        "a dropped checkpoint stays on the list of victims", CACHE + "tree.py",
        "        self.eviction.withdraw(node)\n        if node.ghost", "        if node.ghost",
    ),
    Mutant(
        "the cap of a path takes branch points", CACHE + "donation.py",
        "                and len(each.children) < 2\n", "",
        ("tests/unit/cache/test_state_cache.py",),
    ),
    Mutant(
        "the cap of a path takes what somebody waits for", CACHE + "donation.py",
        "                and each.depth not in awaited\n", "", ("tests/unit/cache/test_state_cache.py",),
    ),
    Mutant(
        "a path is capped while slots are free", CACHE + "donation.py",
        "if capped:", "if True:",
        ("tests/unit/cache/test_state_cache.py",),
    ),
    Mutant(
        "checkpoints on the grid leave nothing for the next admission", CACHE + "state_cache.py",
        "return self.arena.free_slots > 2 * self.strategy.slots_per_sequence",
        "return self.arena.free_slots > 0",
        ("tests/unit/cache/test_state_cache.py",),
    ),
    Mutant(
        "a row takes more pages than it has places for", CACHE + "persistent_batch.py",
        "if after > self.pages.shape[1]:", "if False:", ("tests/unit/cache/test_persistent_batch.py",),
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
        "a new checkpoint pushes out what is worth more", CACHE + "checkpoint_choice.py",
        "if worth > most and (worth > least or (self.spare and depth in required)):", "if worth > most:",
        (UNIT,),
    ),
    Mutant(
        "the ghost tree grows without bound", CACHE + "ghost_tree.py",
        "while self.bytes > self.most_bytes and", "while False and", (UNIT,),
    ),
    Mutant(
        "the end of an answered turn counts as an end still", CACHE + "ghost_tree.py",
        "            ghost.uses += 1\n", "            pass\n", (UNIT,),
    ),
    Mutant(
        "a branch is sought in resident pages alone", CACHE + "checkpoint_choice.py",
        "return (*branches, shared, *(depth for _, depth in known))",
        "return (*branches, match.kv_depth)", (UNIT,),
    ),
    Mutant(
        "ages never change", CACHE + "ghost_tree.py",
        "        aged = self._age()\n", "        aged: list[Ghost] = []\n", (UNIT,),
    ),
    Mutant(
        "a class is believed however badly it foretells", CACHE + "return_times.py",
        "or self.score > -SLACK else", "or True else", (UNIT,),
    ),
    Mutant(
        "a checkpoint that gave NaN stays in the tree", CACHE + "state_cache.py",
        "                self._drop_distrusted(allocation.node, allocation.distrusted_from)\n",
        "                pass\n", ("tests/unit/engine/test_core.py",),
    ),
    Mutant(
        "what was flushed is resumed until it is swept", CACHE + "tree.py",
        "if not child.slot or child.epoch != self.epoch:", "if not child.slot:",
        ("tests/unit/cache/test_flush.py",),
    ),
    Mutant(
        "what comes after a flush is swept with the rest", CACHE + "reclaimer.py",
        "if node.parent is None or node.epoch == epoch:", "if node.parent is None or node.state_lock:",
        ("tests/unit/cache/test_flush.py",),
    ),
    Mutant(
        "what was flushed is the last to go", CACHE + "reclaimer.py",
        "            if self.sweeping:\n                self.sweep()\n                continue\n", "",
        ("tests/unit/cache/test_flush.py",),
    ),
    Mutant(
        "an evicted checkpoint is still named by its ghost", CACHE + "tree.py",
        "            node.ghost.node = None\n            node.ghost.drop_returns()\n",
        "            pass\n", (UNIT,),
    ),
)  # fmt: skip
