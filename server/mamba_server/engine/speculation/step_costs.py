"""Seconds of steps with and without drafts, by their sizes: the cost of drafts is measured. Pure."""

from collections import deque

Size = tuple[int, int, int]
"""Classes of the number of sequences and of rows of drafts, and the tokens that the head drafted for one."""
KEPT = 7
"""Number of last steps of a size that count."""
FORGOTTEN_AFTER = 64
"""Number of refusals after which the cost of a size is measured again: it may have been an accident."""
ASSUMED = 0.08
"""Cost of a row of drafts, in steps of one sequence, before it is measured: low, so that it is measured."""


class StepCosts:
    """Measures how much longer the steps of one engine take when they have drafts.

    In all methods, `decodes` is the number of sequences of a step, `drafts` the number of all its rows of
    drafts, and `turns` the number of tokens that the model's head drafted for one sequence before the step.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        """Seconds of the last steps without drafts, by the class of the number of sequences."""
        self._ratios: dict[Size, deque[float]] = {}
        """Times of the last steps with drafts, in steps without drafts that came before them, and 1 at least:
        where the machine has become slower meanwhile, drafts have not become dearer."""
        self._refusals: dict[Size, int] = {}
        self._runs: dict[Size, int] = {}
        """Number of measured steps with drafts of a size. The code of the first one is cold, so that half of
        what it takes longer counts until the second."""

    def observe(self, decodes: int, drafts: int, seconds: float, turns: int = 0) -> None:
        """Record that a step without prompts took `seconds`."""
        size = _size(decodes, drafts, turns)
        last = self._plain.get(size[0])
        if not drafts:
            if last is None:
                last = self._plain[size[0]] = deque(maxlen=KEPT)
            last.append(seconds)
        elif last is not None:
            ratios = self._ratios.setdefault(size, deque(maxlen=KEPT))
            ratio = max(1.0, seconds / _typical(last))
            runs = self._runs[size] = self._runs.get(size, 0) + 1
            if runs == 2:
                ratios.clear()
            ratios.append(ratio if runs > 1 else (1.0 + ratio) / 2)
            self._refusals.pop(size, None)

    def knows(self, decodes: int) -> bool:
        """Return whether a step of `decodes` sequences without drafts was measured."""
        return _class(decodes) in self._plain

    def ratio(self, decodes: int, drafts: int, turns: int = 0) -> float:
        """Return the time of a step with drafts, as a multiple of the time of the same step without drafts.

        The ratio was measured; for a size that was not measured it is estimated from other sizes, or from
        `ASSUMED`.
        """
        if not drafts:
            return 1.0
        size = _size(decodes, drafts, turns)
        if size in self._ratios:
            return _typical(self._ratios[size])
        # A row of drafts costs at least as much as it does in other steps of as many sequences.
        of_rows = [
            (_typical(ratios) - 1.0) / rows
            for (sequences, rows, others), ratios in self._ratios.items()
            if sequences == size[0] and (others > 0) == (turns > 0)
        ]
        return 1.0 + min(of_rows, default=ASSUMED / decodes) * drafts

    def refuse(self, decodes: int, drafts: int, turns: int = 0) -> None:
        """Record that a step was run without these drafts, because they would have cost too much.

        After `FORGOTTEN_AFTER` such steps the measured ratio of the size is forgotten, and measured again.
        """
        size = _size(decodes, drafts, turns)
        self._refusals[size] = self._refusals.get(size, 0) + 1
        if self._refusals[size] >= FORGOTTEN_AFTER:
            self._refusals[size] = 0
            self._ratios.pop(size, None)


def _typical(values: deque[float]) -> float:
    """Return the lower quartile of `values`: other work of the machine makes steps longer, never shorter."""
    return sorted(values)[len(values) // 4]


def _size(decodes: int, drafts: int, turns: int) -> Size:
    """Return the class of a step: exact up to eight, in powers of two beyond."""
    return _class(decodes), _class(drafts), turns


def _class(count: int) -> int:
    return count if count <= 8 else 8 * (count - 1).bit_length()
