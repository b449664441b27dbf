"""`BundleStore`: bundles in host memory and on disk, for the engine that owns it.

An engine offers each checkpoint that its cache evicts (`put`), looks prompts up (`lookup`) and reads what it
needs into memory that it reserved (`read`). Nothing here computes on states, and no failure of a tier reaches a
request: a bundle that cannot be stored or read is dropped.
"""

from collections.abc import Sequence

from mamba_prefix.page_chain import Tokens
from mamba_tier.bundle_shape import BundleShape, StoreSettings
from mamba_tier.outcomes import Match, PutOutcome, ReadOutcome, StoreStatus

Buffers = Sequence[memoryview]


class BundleStore:
    """The tiers below one state cache. All methods may be called from any thread."""

    def __init__(self, shape: BundleShape, settings: StoreSettings) -> None:
        """Open the tiers and start the writer. Raises DirectoryBusy, DirectoryForeign, DirectoryUnusable."""
        raise NotImplementedError

    def missing_from(self, token_ids: Tokens, salt: str) -> int | None:
        """Return the token from which a put of this prefix needs pages; None = the bundle is stored already.

        `token_ids` is the whole prefix: its length is the depth, a multiple of the page size.
        """
        raise NotImplementedError

    def put(self, token_ids: Tokens, salt: str, state: Buffers, pages: Buffers, first: int = 0) -> PutOutcome:
        """Copy a bundle for the writer, which stores it later.

        `token_ids` is the whole prefix; its length is the depth. `state` are the bytes of the state, `pages`
        those of the pages of [first, depth) in the order of tokens; `first` is 0 or what `missing_from`
        returned. The buffers may be reused when the call returns. The call copies once, and never waits
        for a tier. Raises SizeMismatch.
        """
        raise NotImplementedError

    def lookup(self, token_ids: Tokens, salt: str, *, base: int = 0, above: int = 0) -> Match | None:
        """Return the deepest stored bundle of a prompt that is deeper than `above` tokens; None = there is none.

        `token_ids` are the tokens that the engine may resume behind, so without the prompt's last one. `base`
        is the number of tokens whose pages the engine has, a multiple of the page size.
        """
        raise NotImplementedError

    def read(self, match: Match, state: Buffers, pages: Buffers) -> ReadOutcome:
        """Read a bundle into `state` and `pages`, and verify it.

        `state` takes `match.state_bytes`, and `pages` takes `match.pages_bytes`: the pages of
        [match.base, match.depth) in the order of tokens. After anything but VALID the buffers hold garbage.
        No byte lands after the call returned. Raises SizeMismatch.
        """
        raise NotImplementedError

    def status(self) -> StoreStatus:
        """Return what the tiers hold, and the counters."""
        raise NotImplementedError

    def drain(self, seconds: float) -> bool:
        """Wait until the writer has nothing to do; False = it still had after `seconds`."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the writer, drop what waits for it, and unlock the directory. Further calls find nothing."""
        raise NotImplementedError
