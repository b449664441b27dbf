"""Seeded defects of the prefix index: a gateway would believe what no engine has, or miss what one has."""

from seeded import Mutant

PREFIX, ENGINE = "server/mamba_prefix/", "server/mamba_server/engine/"
FOLLOWING = ("tests/unit/prefix/test_following.py",)
CHAIN = ("tests/unit/prefix/test_page_chain.py",)
TABLE = ("tests/unit/prefix/test_prefix_table.py",)
TOLD = ("tests/unit/engine/test_tree_changes.py",)

MUTANTS = (
    Mutant(
        "a missing batch is not noticed",
        PREFIX + "prefix_index.py",
        "message.seq == view.seq + 1)",
        "message.seq > view.seq)",
        FOLLOWING,
    ),
    Mutant(
        "a heartbeat that tells of more is not believed",
        PREFIX + "prefix_index.py",
        "and view.seq >= beat.seq",
        "and view.seq >= 0",
        FOLLOWING,
    ),
    Mutant(
        "a whole prompt counts as resumable",
        PREFIX + "prefix_index.py",
        "token_ids[: max(0, len(token_ids) - 1)]",
        "token_ids",
        ("tests/unit/gateway/test_direct_feed.py",),
    ),
    Mutant(
        "the dead are never dropped",
        PREFIX + "follower.py",
        "await self._forget(engine)",
        "pass",
        FOLLOWING,
    ),
    Mutant(
        "nobody is asked for a new snapshot",
        PREFIX + "follower.py",
        "await self._store.want(engine)",
        "pass",
        FOLLOWING,
    ),
    Mutant(
        "a stream that begins anew is followed where the old one was",
        PREFIX + "follower.py",
        "            self._position = start\n        for engine in wanted",
        "        for engine in wanted",
        FOLLOWING,
    ),
    Mutant(
        "an emptied Redis is not noticed",
        PREFIX + "publisher.py",
        "        if not self._as_left(before):",
        "        if False:",
        FOLLOWING,
    ),
    Mutant(
        "a batch that could not be written is skipped",
        PREFIX + "publisher.py",
        "            self._after = await self._store.append(packed)\n            self._seq = behind[-1].seq",
        "            self._seq = behind[-1].seq\n            self._after = await self._store.append(packed)",
        FOLLOWING,
    ),
    Mutant(
        "a page is the same wherever it stands",
        PREFIX + "page_chain.py",
        "pages += _PLACES[at:end] if end <= len(_PLACES) else _places(at, end)",
        "pass",
        CHAIN,
    ),
    Mutant(
        "a salt changes no hash",
        PREFIX + "page_chain.py",
        "for part in (fingerprint, salt, str(page_size)):",
        "for part in (fingerprint, str(page_size)):",
        CHAIN,
    ),
    Mutant(
        "an engine that goes takes the others' bits along",
        PREFIX + "prefix_table.py",
        "bits[had] &= ~(_ONE << np.uint64(engine))",
        "bits[had] = 0",
        TABLE,
    ),
    Mutant(
        "a table built anew forgets its sieve",
        PREFIX + "prefix_table.py",
        "        self._left -= len(at)\n        self._sift(hashes)",
        "        self._left -= len(at)",
        TABLE,
    ),
    Mutant(
        "a prefix of the old layout is not found until it is taken along",
        PREFIX + "prefix_table.py",
        "            rows, bits = np.concatenate((rows, old_rows)), np.concatenate((bits, old_bits))",
        "            pass",
        TABLE,
    ),
    Mutant(
        "what came and went in between is told as lost",
        ENGINE + "tree_changes.py",
        "if self._gained.pop(each, None) is None:\n            self._lost.add(each)",
        "self._gained.pop(each, None)\n        self._lost.add(each)",
        TOLD,
    ),
    Mutant(
        "what a flush spares is forgotten",
        ENGINE + "tree_changes.py",
        "for prefix in kept:",
        "for prefix in ():",
        TOLD,
    ),
    Mutant(
        "pages that are gone are still told",
        "server/mamba_server/cache/tree.py",
        "self.listener.pages_lost(node)",
        "pass",
        TOLD,
    ),
    Mutant(
        "pages that an engine lost stay known",
        PREFIX + "prefix_index.py",
        "self._pages.remove(number, np.unique(hashes_of(message.pages_lost)))",
        "pass",
        FOLLOWING,
    ),
    Mutant(
        "a snapshot leaves out the pages",
        PREFIX + "change_log.py",
        ", pages=pack_hashes(self.pages)",
        "",
        FOLLOWING,
    ),
    Mutant(
        "an old answer is believed over what the engine published since",
        PREFIX + "prefix_index.py",
        "np.setdiff1d(hashes, gained)",
        "np.unique(hashes)",
        ("tests/unit/prefix/test_withdrawn.py",),
    ),
    Mutant(
        "an answer that tells of less is not believed",
        "server/mamba_gateway/routing/router.py",
        "elif resumed < promised:",
        "elif resumed < 0:",
        ("tests/unit/gateway/test_router.py",),
    ),
)
