"""Defects of the state cache."""

from seeded import Mutant

PINS = ("tests/unit/cache/test_pins.py",)
MUTANTS = (
    Mutant(
        name="a slot or page is free before the last step that uses it has completed",
        keeps="Memory that a running step may still use is not handed out before that step has completed.",
        where="cache.arena:Arena.advance",
        old="if fence > self.completed:\n    ...\nelse:\n    self._return_pages(pages, PageOwner.FENCED)",
        new="if False:\n    ...\nelse:\n    self._return_pages(pages, PageOwner.FENCED)",
    ),
    Mutant(
        name="the memory of an ended sequence comes back before its last step has completed",
        keeps="A sequence that ends while its step runs is retired after that step.",
        where="cache.state_cache:RadixStateCache.retire",
        old="allocation.last_step > self.arena.completed",
        new="False",
    ),
    Mutant(
        name="the checkpoint of a decode step is recorded one token too deep",
        keeps="The depth of a checkpoint is the number of tokens that its state has read.",
        where="cache.state_cache:RadixStateCache.take_decode_slot",
        old="allocation.depth + 1",
        new="allocation.depth + 2",
    ),
    Mutant(
        name="chunks of a prefill are counted from the start of its piece",
        keeps="P3: a prompt has the same chunks, and so the same results, however its prefill is cut.",
        where="cache.placement:chunk_ends",
        old="(start // chunk + 1) * chunk",
        new="start + chunk",
    ),
    Mutant(
        name="a checkpoint is donated before the step that writes it has completed",
        keeps="A checkpoint enters the tree only after the step that writes it has completed.",
        where="cache.state_cache:RadixStateCache.commit",
        old="pending.step > step",
        new="False",
    ),
    Mutant(
        name="both halves of a split node own the same state",
        keeps="A slot has one owner: a split leaves the checkpoint to the lower node.",
        where="cache.tree:RadixTree._split",
        old="upper.priority = child.priority",
        new="upper.priority = child.priority\nupper.slot = child.slot",
    ),
    Mutant(
        name="the upper half of a split node loses the locks on its pages",
        keeps="W4: a node counts at least as many page locks as the nodes below it.",
        where="cache.tree:RadixTree._split",
        old="upper.kv_lock = child.kv_lock",
        new="upper.kv_lock = 0",
    ),
    Mutant(
        name="a resumed checkpoint is unlocked when its step is launched",
        keeps="W8: a checkpoint cannot be evicted until the step that reads it has completed.",
        where="cache.state_cache:RadixStateCache.launch",
        old="self.batch.launch(rows, depth, step)",
        new="self.batch.launch(rows, depth, step)\n"
        "for holder in self.allocations.values():\n"
        "    if holder.row == rows and holder.match_node is not None:\n"
        "        self.tree.unlock_state(holder.match_node)\n"
        "        holder.match_node = None",
    ),
    Mutant(
        name="the checkpoint that a prompt matched may be evicted to make room for that prompt",
        keeps="W8: eviction never takes what was matched for the sequence that is being admitted.",
        where="cache.state_cache:RadixStateCache.admit",
        old="self.tree.lock(match.node, state=True)",
        new="pass",
    ),
    Mutant(
        name="a row of the batch is given away while its sequence still has a step in flight",
        keeps="A row has one sequence until that sequence's last step has completed.",
        where="cache.state_cache:RadixStateCache.retire",
        old="self._retiring.append(RetiringSequence(allocation.last_step, allocation, token_ids))",
        new="self.batch._free.append(allocation.row)\n"
        "self._retiring.append(RetiringSequence(allocation.last_step, allocation, token_ids))",
    ),
    Mutant(
        name="checkpoints behind a stop string are donated with tokens that the answer does not have",
        keeps="Nothing deeper than the tokens that count is donated.",
        where="cache.state_cache:RadixStateCache._donate_end",
        old="[each for each in allocation.ready if each.depth <= usable]",
        new="list(allocation.ready)",
    ),
    Mutant(
        name="a prompt is resumed at its full length, so that no token is left to compute",
        keeps="A match leaves at least one token of the prompt to the prefill.",
        where="cache.tree:RadixTree.match",
        old="len(token_ids) - 1",
        new="len(token_ids)",
    ),
    Mutant(
        name="a checkpoint is resumed in the same step that writes it",
        keeps="A checkpoint is visible from the step after the one that writes it.",
        where="cache.tree:RadixTree._path_checkpoints",
        old="child.produced_step >= step",
        new="False",
    ),
    Mutant(
        name="duplicate pages of a sequence are freed while its step still reads them",
        keeps="Pages that the tree replaces come back after the last step of the sequence.",
        where="cache.donation:Donation._give_pages",
        old="allocation.last_step",
        new="0",
    ),
    Mutant(
        name="a sequence goes on reading pages that were freed as duplicates",
        keeps="After a donation the sequence reads the pages of the tree.",
        where="cache.donation:Donation._give_pages",
        old="allocation.replace_pages(of_tree)",
        new="pass",
    ),
    Mutant(
        name="a prompt resumes the checkpoint of another salt",
        keeps="Tenants with different salts share no cache.",
        where="cache.tree:RadixTree._longest_path",
        old="self.roots.get(salt)",
        new="self.roots.get(salt) or next(iter(self.roots.values()), None)",
    ),
    Mutant(
        name="eviction frees pages that a running sequence reads",
        keeps="W4: locked pages are not freed.",
        where="cache.tree:RadixTree.bare_below",
        old="descendant.slot or descendant.kv_lock",
        new="descendant.slot",
    ),
    Mutant(
        name="pages below no checkpoint are never evicted",
        keeps="Every unlocked page can be evicted, so that the cache cannot fill up with unreachable pages.",
        where="cache.reclaimer:Reclaimer.make_room",
        old="eviction.pop_checkpoint() or eviction.pop_bare_node()",
        new="eviction.pop_checkpoint()",
    ),
    Mutant(
        name="a checkpoint whose successors computed NaN stays in the tree",
        keeps="States that led to a result that is not finite are dropped.",
        where="cache.state_cache:RadixStateCache._retire_now",
        old="self._drop_untrusted(allocation.node, allocation.untrusted_from)",
        new="pass",
        tests=("tests/unit/engine/test_core.py",),
    ),
    Mutant(
        name="a flushed checkpoint is resumed until it is swept",
        keeps="After a flush nothing older is resumed, also before its memory comes back.",
        where="cache.tree:RadixTree._path_checkpoints",
        old="not child.slot or child.epoch != self.epoch",
        new="not child.slot",
        tests=("tests/unit/cache/test_flush.py",),
    ),
    Mutant(
        name="eviction does not know pins",
        keeps="K1: a pinned checkpoint is evicted after all others.",
        where="cache.eviction:Eviction.rank",
        old="self.weigh(node) if node.pin is None else PINNED + node.pin.number",
        new="self.weigh(node)",
        tests=PINS,
    ),
    Mutant(
        name="the cap of a path drops pinned checkpoints",
        keeps="K1: the cap spares pins.",
        where="cache.donation:Donation.cap_path",
        old="candidate.pin is None",
        new="True",
        tests=PINS,
    ),
    Mutant(
        name="a pin survives a flush",
        keeps="K1: after a flush nothing older is resumed or held.",
        where="cache.tree:RadixTree.forget",
        old="self.release_pin(pin)",
        new="pass",
        tests=PINS,
    ),
    Mutant(
        name="a checkpoint makes a pin give way",
        keeps="K1: a pin gives way to a sequence alone.",
        where="cache.reclaimer:Reclaimer._spares_pins",
        old="site in _SPARING and bool(self.tree.pins) and self.tree.eviction.only_pins",
        new="False",
        tests=PINS,
    ),
    Mutant(
        name="a client's newest pin ends when its budget is used up",
        keeps="Beyond a client's budget its oldest pin ends first.",
        where="engine.stepping.pinned_prefixes:PinnedPrefixes._add",
        old="for each in held:\n"
        "    if used <= self._budget:\n"
        "        break\n"
        "    used -= each.slabs\n"
        "    self._end(client, each.pin.number, 'over_budget')",
        new="for each in reversed(held):\n"
        "    if used <= self._budget:\n"
        "        break\n"
        "    used -= each.slabs\n"
        "    self._end(client, each.pin.number, 'over_budget')",
        tests=("tests/unit/engine/test_pinned_prefixes.py",),
    ),
)
