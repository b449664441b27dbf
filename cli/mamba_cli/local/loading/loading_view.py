"""Shows how far children are: a bar on a terminal, plain lines elsewhere. Renders; decides nothing."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from mamba_cli.local.loading.readiness import EngineReadiness
from mamba_settings.byte_size import binary_size

Plain = Callable[[str, str, int, int], None]
_PLAIN_STEPS = 4
"""Plain lines per stage: a log wants quarters, not frames."""
_WIDTH_OF_BARS = 80
"""Columns of the narrowest terminal that has room for a bar."""
_SPINNER_AND_TIME = 13
"""Columns beside name, stage and amount."""
_SHORTEST_NAME = 8
"""Columns of a name that still tells which one it is."""


class LoadingView:
    """One bar per engine; `show` may be called as often as one likes.

    `plain` gets (name, stage, done, total) where there is no terminal; None = lines on the console.
    """

    def __init__(self, console: Console, plain: Plain | None = None) -> None:
        self._console = console
        self._plain = plain or self._line
        self._bars: dict[str, TaskID] = {}
        self._last: dict[str, tuple[str, int]] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *((BarColumn(),) if console.width >= _WIDTH_OF_BARS else ()),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(Column(no_wrap=True)),
            console=console,
            transient=True,
        )

    def show(self, name: str, readiness: EngineReadiness | None) -> None:
        """Take in the engine's latest word; None = it does not answer yet."""
        if readiness is not None and readiness.ready:
            return
        stage = "starting" if readiness is None else readiness.stage or "loading"
        done, total = (readiness.done, readiness.total) if readiness else (0, 0)
        amount = _amount(stage, done, total)
        if self._console.is_terminal:
            self._progress.start()
            words, amount = self._fit_to_width(name, stage, amount, done, total)
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(words, total=None, amount=amount)
            bar = next(task for task in self._progress.tasks if task.id == self._bars[name])
            # A full bar would stop clock and spinner, as if the engine hung, until the next stage is told.
            bar.total = total if 1 < total > done else None
            self._progress.update(bar.id, description=words, completed=done, amount=amount)
            return
        reached = done * _PLAIN_STEPS // total if total else 0
        if self._last.get(name) != (stage, reached):
            self._last[name] = (stage, reached)
            self._plain(name, stage, done, total)

    def _fit_to_width(self, name: str, stage: str, amount: str, done: int, total: int) -> tuple[str, str]:
        """(name and stage, amount) that fit the width of the console: the amount becomes a percentage, then
        the name is truncated, then left out."""
        room = self._console.width - _SPINNER_AND_TIME - len(stage)
        least = min(len(name), _SHORTEST_NAME)
        if amount and room - len(amount) < least:
            amount = f"{100 * done // total}%"
        room -= len(amount)
        if room < least:
            return stage, amount
        return f"{name if len(name) <= room else f'{name[: room - 1]}…'}: {stage}", amount

    def _line(self, name: str, stage: str, done: int, total: int) -> None:
        self._console.print(f"{name}: {stage} {_amount(stage, done, total)}".rstrip(), highlight=False)

    def print_line(self, text: str, style: str = "") -> None:
        """Print a permanent line above the bars."""
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def finish(self, name: str) -> None:
        """The engine is ready: its bar goes."""
        self._last.pop(name, None)
        if (bar := self._bars.pop(name, None)) is not None:
            self._progress.remove_task(bar)
            if not self._bars:
                # Nothing moves any more: a live display would only redraw what is said from now on.
                self.close()

    def close(self) -> None:
        """Give the terminal back."""
        if self._console.is_terminal:
            self._progress.stop()


def _amount(stage: str, done: int, total: int) -> str:
    if total <= 1:
        # A step that is either done or not: a counter would never be seen to move.
        return ""
    if stage in ("weights", "download", "load", "loading") or total > 1 << 20:
        return f"{binary_size(done)} of {binary_size(total)}"
    return f"{done} of {total}"
