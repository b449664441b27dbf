"""The tutorials on one machine: each command runs as it stands, in order, and prints what its page shows."""

import itertools
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eventually import wait_until
from matrix_size import LARGE
from screens import form, screens
from servers import Command, call

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial/first-deployment.md").read_text()
OWN_MODEL = (ROOT / "docs/tutorial/your-own-model.md").read_text()
SCREENS = screens(PAGE)
URL = "http://127.0.0.1:8000"
REFUSED, APPLIED = re.findall(r"^```text\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)
ADDED = re.search(r"^\+(  stateCache:)\n\+(    trackIntervall: 512)$", PAGE, re.MULTILINE)


def run(command: str, url: str, folder: Path = ROOT) -> str:
    command = command.replace(URL, url).replace(" mine.yaml", f" {folder}/mine.yaml")
    if command.startswith("mambaserve "):
        with Command(*shlex.split(command)[1:], env={"COLUMNS": "80"}) as running:
            assert running.wait() == 0, running.output
            return running.output
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout


def engine_of(url: str) -> dict[str, Any]:
    engine: dict[str, Any] = call(f"{url}/v1/status")[1]["engines"][0]
    return engine


def amounts(text: str) -> list[str]:
    """Return the lines of a plan without its amounts, which follow the processor, and without its bar."""
    lines = (re.sub(r"\d[\d,.]*", "N", line).split() for line in text.splitlines() if "▕" not in line)
    return [" ".join(words) for words in lines if words]


def test_each_screen_of_the_tutorial_is_what_its_command_prints(tmp_path: Path) -> None:
    up, plan, request, status = SCREENS
    file = up.command.removeprefix("mambaserve up ")
    edited = tmp_path / "mamba.yaml"
    edited.write_text((ROOT / file).read_text())
    assert f"```yaml\n{edited.read_text()}```" in PAGE
    assert amounts(run(plan.command, URL)) == amounts(plan.output)
    with Command("up", str(edited), "--port", "0") as running:
        url = running.wait_for(r"is ready: (http://\S+)/v1")[1]
        running.wait_for(r"status page: ")
        for line in form(up.output)[1:]:
            assert line in form(running.output)
        assert form(run(request.command, url)) == form(request.output)
        assert '"cached_tokens":32' in run(request.command, url)
        wait_until(lambda: engine_of(url)["cached_tokens"] == 32 and engine_of(url)["running"] == 0)
        assert form(run(status.command, url)) == form(status.output)

        assert ADDED is not None
        edited.write_text(edited.read_text() + "\n".join([*ADDED.groups(), ""]))
        running.wait_for(re.escape(REFUSED))
        assert '"content":"red"' in run(request.command, url)
        edited.write_text(edited.read_text().replace("trackIntervall", "trackInterval"))
        running.wait_for(re.escape(APPLIED))


def test_each_screen_about_an_own_model_is_what_its_command_prints(tmp_path: Path) -> None:
    copy, listing, plan, up, chat, request = screens(OWN_MODEL)
    (tmp_path / "server").symlink_to(ROOT / "server")
    file = re.search(r"^```yaml\n(.*?)^```", OWN_MODEL, re.MULTILINE | re.DOTALL)
    assert file is not None
    (tmp_path / "mine.yaml").write_text(file[1])
    for screen in (copy, listing):
        assert run(screen.command, URL, tmp_path).split() == screen.output.split()
    assert amounts(run(plan.command, URL, tmp_path)) == amounts(plan.output)
    if not LARGE:  # the other tutorial serves, too
        return
    with Command("up", str(tmp_path / "mine.yaml"), "--port", "0") as running:
        url = running.wait_for(r"is ready: (http://\S+)/v1")[1]
        running.wait_for(r"status page: ")
        for line in form(up.output)[1:]:
            assert line in form(running.output)
        for screen in (chat, request):
            assert form(run(screen.command, url)) == form(screen.output)


def test_the_tutorials_lead_from_one_to_the_next() -> None:
    order = ("first-deployment", "your-own-model", "in-a-cluster")
    for page, following in itertools.pairwise(order):
        text = (ROOT / f"docs/tutorial/{page}.md").read_text().partition("## Next")[2]
        assert f"]({following}.md)" in text.strip().splitlines()[0]
