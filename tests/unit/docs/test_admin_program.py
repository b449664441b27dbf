"""The program of the reference that calls the admin port from the container of an engine."""

import asyncio
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from mamba_api import names
from mamba_edge.api_keys import KeyFile
from mamba_operator.render.engine_pod import ADMIN_TOKEN_MOUNT
from mamba_server import wire
from scripted_engine import Api
from served_app import served

PAGE = (Path(__file__).parents[3] / "docs/reference/http-api.md").read_text()
SECTION = PAGE.partition("### The admin port of a pod")[2]


async def test_it_sends_the_token_of_the_pod_and_shows_answers_and_refusals(tmp_path: Path) -> None:
    program = re.search(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    assert program is not None
    mounted = f"{ADMIN_TOKEN_MOUNT}/{names.ADMIN_TOKEN_KEY}"
    assert mounted in program[1]
    (tmp_path / "token").write_text("secret")
    api = Api(token=KeyFile(str(tmp_path / "token"), "admin_token_file"))

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AdminCall):
            api.engine.send(wire.AdminReply(message.call_id, 200, {"budgetBytes": 7}))

    api.engine.process.react = react
    async with served(api.admin) as url:
        place = urlsplit(url)
        text = program[1].replace(mounted, str(tmp_path / "token"))
        text = text.replace(f":{names.ADMIN_PORT}{{path}}", f":{place.port}{{path}}")

        async def run(*words: str) -> tuple[int | None, bytes, bytes]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-", *words,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={"MAMBASERVE_ADMIN_HOST": str(place.hostname)},
            )  # fmt: skip
            out, err = await process.communicate(text.encode())
            return process.returncode, out, err

        assert await run("GET", "/admin/plan") == (0, b'{"budgetBytes":7}\n', b"")
        code, out, err = await run("PUT", "/admin/strategy", '{"strategy": "Wrong"}')
        assert (code, out) == (1, b"")
        assert b'"error"' in err
