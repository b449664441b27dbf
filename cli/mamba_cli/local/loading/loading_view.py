"""`LoadingView`: the progress of loading engines, as bars on a terminal, else as lines. Decides nothing."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from mamba_cli.local.loading.readiness import EngineReadiness
from mamba_settings.byte_size import binary_size

Plain = Callable[[str, str, int, int], None]
_LINES_PER_STAGE = 4
"""Number of lines per stage without a terminal."""
_BAR_COLUMNS = 80
"""Width in columns of the narrowest terminal that has room for a bar."""
_OTHER_COLUMNS = 13
"""Width in columns of spinner, time and spaces."""
_MIN_NAME_COLUMNS = 8
"""Width in columns of the shortest cut name that can still be recognized."""


class LoadingView:
    """A display with one bar per engine; `show` may be called at any rate.

    Without a terminal, `plain` gets (name, stage, done, total); None = print lines on the console.
    """

    def __init__(self, console: Console, plain: Plain | None = None) -> None:
        self._console = console
        self._plain = plain or self._line
        self._bars: dict[str, TaskID] = {}
        self._last: dict[str, tuple[str, int]] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *((BarColumn(),) if console.width >= _BAR_COLUMNS else ()),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(Column(no_wrap=True)),
            console=console,
            transient=True,
        )

    def show(self, name: str, readiness: EngineReadiness | None) -> None:
        """Show the latest answer of the engine; None = it does not answer yet."""
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
            # A full bar would stop clock and spinner until the next stage, as if the engine hung.
            bar.total = total if 1 < total > done else None
            self._progress.update(bar.id, description=words, completed=done, amount=amount)
            return
        reached = done * _LINES_PER_STAGE // total if total else 0
        if self._last.get(name) != (stage, reached):
            self._last[name] = (stage, reached)
            self._plain(name, stage, done, total)

    def _fit_to_width(self, name: str, stage: str, amount: str, done: int, total: int) -> tuple[str, str]:
        """Return (name and stage, amount) that fit the width of the console.

        Where they do not fit, the amount becomes a percentage, then the name is cut, then left out.
        """
        room = self._console.width - _OTHER_COLUMNS - len(stage)
        least = min(len(name), _MIN_NAME_COLUMNS)
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
        """Remove the bar of an engine that is ready."""
        self._last.pop(name, None)
        if (bar := self._bars.pop(name, None)) is not None:
            self._progress.remove_task(bar)
            if not self._bars:
                # Without bars, a live display would only redraw later lines.
                self.close()

    def close(self) -> None:
        """Restore the terminal."""
        if self._console.is_terminal:
            self._progress.stop()


def _amount(stage: str, done: int, total: int) -> str:
    if total <= 1:
        # A counter of one step would never be seen to move.
        return ""
    if stage in ("weights", "download", "load", "loading") or total > 1 << 20:
        return f"{binary_size(done)} of {binary_size(total)}"
    return f"{done} of {total}"
