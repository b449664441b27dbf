"""When each prefix of a trace is asked for: what the bound and the oracle know and no policy can. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mamba_cli.bench.traces import Arrival

NEVER = 1 << 60


@dataclass(slots=True)
class PrefixHistory:
    """Prefixes of whole blocks, numbered; `paths[i]` are those of request i, shallow first."""

    block: int
    paths: list[list[int]] = field(default_factory=list)
    touches: list[list[int]] = field(default_factory=list)
    """Requests that begin with each prefix, in order."""
    limits: list[int] = field(default_factory=list)
    """Whole blocks that request i could resume: its last token is always computed."""

    @classmethod
    def of(cls, arrivals: Iterable[Arrival], block: int) -> "PrefixHistory":
        """Assign numbers to the prefixes of `arrivals`."""
        history = cls(block)
        numbers: dict[tuple[int, int], int] = {}
        for number, arrival in enumerate(arrivals):
            path, above = [], -1
            for name in arrival.block_ids[: arrival.input_tokens // block]:
                above = numbers.setdefault((above, name), len(numbers))
                if above == len(history.touches):
                    history.touches.append([])
                history.touches[above].append(number)
                path.append(above)
            history.paths.append(path)
            history.limits.append((arrival.input_tokens - 1) // block)
        return history

    def last(self, each: Sequence[int], number: int) -> list[int]:
        """Return, for each prefix that occurs before `number`, the last request that began with it."""
        out = []
        for prefix in each:
            first = self.touches[prefix][0]
            if first >= number:
                break
            out.append(_before(self.touches[prefix], number))
        return out

    def next(self, prefix: int, number: int) -> int:
        """Return the first request after `number` that begins with `prefix`; NEVER if none does."""
        touches = self.touches[prefix]
        index = _after(touches, number)
        return touches[index] if index < len(touches) else NEVER

    def ends(self, number: int) -> list[int]:
        """Return the depths, in blocks, at which a later request branches from `number`."""
        out, soonest = [], NEVER
        path = self.paths[number]
        for depth in range(self.limits[number], 0, -1):
            again = self.next(path[depth - 1], number)
            if again < soonest:
                out.append(depth)
                soonest = again
        return out[::-1]


def _before(touches: list[int], number: int) -> int:
    return touches[_after(touches, number - 1) - 1]


def _after(touches: list[int], number: int) -> int:
    """Index of the first touch later than `number`."""
    return bisect_right(touches, number)
