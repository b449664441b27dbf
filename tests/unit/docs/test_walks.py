"""The pages of walks are those that are recorded now, and the recording follows one piece of work alone."""

import asyncio
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from mamba_api import quantity
from mamba_text import markers
from matrix_size import LARGE

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def walks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mambaserve_walks", ROOT / "scripts/walks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "walk-of-a-request.md",
        "walk-of-a-reconcile.md",
        *(["walk-of-a-prompt.md", "walk-of-a-strategy.md"] if LARGE else []),
    ],
)
def test_the_page_of_a_walk_has_the_files_that_are_passed(page: str) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/walks.py", "--check", page], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_page_that_lacks_a_file_is_noticed_and_mended(
    walks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "walk-of-a-reconcile.md"
    page.write_text(f"# Title\n\n{walks.BEGIN}\n{walks.END}\nThe end.\n")
    monkeypatch.setattr(walks, "PAGES", tmp_path)
    monkeypatch.setattr(walks, "recorded", lambda _: ["libs/mamba_api/quantity.py"])

    monkeypatch.setattr(sys, "argv", ["walks.py", "--check", page.name])
    assert walks.main() == 1
    monkeypatch.setattr(sys, "argv", ["walks.py", page.name])
    assert walks.main() == 0
    assert "\n1. `libs/mamba_api/quantity.py`: " in page.read_text()
    assert page.read_text().startswith("# Title\n")
    assert page.read_text().endswith("\nThe end.\n")


QUANTITY, MARKERS = "libs/mamba_api/quantity.py", "libs/mamba_text/markers.py"


def use(path: str) -> None:
    """Enter a function of this module."""
    if path == QUANTITY:
        quantity.parse_quantity("1Gi")
    else:
        markers.unfinished("text", "<end>")


def test_files_are_in_the_order_of_their_first_use(walks: ModuleType) -> None:
    recorder = walks.Recorder()
    use(QUANTITY)
    with recorder.recording():
        use(MARKERS)
        use(QUANTITY)
        use(MARKERS)
    assert [path for path in recorder.paths if path in (QUANTITY, MARKERS)] == [MARKERS, QUANTITY]


async def test_tasks_that_were_there_before_are_not_followed_and_new_ones_are(walks: ModuleType) -> None:
    recorder = walks.Recorder()
    turn = asyncio.Event()

    async def background() -> None:
        await turn.wait()
        use(QUANTITY)

    async def work() -> None:
        use(MARKERS)

    other = asyncio.create_task(background())
    await asyncio.sleep(0)
    with recorder.recording(asyncio.current_task()):
        turn.set()
        await asyncio.gather(other, asyncio.create_task(work()))
    assert MARKERS in recorder.paths
    assert QUANTITY not in recorder.paths


def test_threads_that_the_work_starts_are_followed(walks: ModuleType) -> None:
    recorder = walks.Recorder()
    with recorder.recording():
        thread = threading.Thread(target=use, args=(MARKERS,))
        thread.start()
        thread.join()
    assert MARKERS in recorder.paths
