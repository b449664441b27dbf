"""Draws a dashboard's panels from the data of a real Prometheus, for the documentation.

    .venv/bin/python scripts/dashboard_picture.py

Serves the shipped model under a changing load for some minutes. Writes docs/assets/dashboard-state-cache.png.
It is no picture of Grafana: the same queries, units and titles, drawn by matplotlib.
"""

import asyncio
import contextlib
import io
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import matplotlib as mpl
import yaml
from PIL import Image
from status_pictures import ROOT, busy

sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from observability.panels import Panel, Query, in_namespaces  # noqa: E402
from observability.state_cache import STATE_CACHE  # noqa: E402
from prometheus_server import Prometheus, prometheus  # noqa: E402
from servers import Command  # noqa: E402

mpl.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

OUT = ROOT / "docs/assets/dashboard-state-cache.png"
SECONDS = 100


async def load(url: str) -> None:
    """Send requests in two bursts with a pause after each, for SECONDS together."""
    for share in (0.45, 0.35):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(busy(url), share * SECONDS)
        await asyncio.sleep(0.1 * SECONDS)


def legend(line: Query, labels: dict[str, str]) -> str:
    """Fill in the legend of a line the way Grafana does."""
    return re.sub(r"{{(\w+)}}", lambda label: labels.get(label[1], ""), line.legend).strip()


def draw(axes: Any, panel: Panel, found: Prometheus, begin: float, end: float) -> None:
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for line in panel.lines:
        said = in_namespaces(line.expression).replace("$__rate_interval", "10s").replace("$namespace", ".*")
        for one in found.range(said, begin, end, 1):
            points = [(float(at) - begin, float(value)) for at, value in one["values"]]
            lines[legend(line, one["metric"])] = ([at for at, _ in points], [value for _, value in points])
    if panel.stacked and lines:
        times = sorted({at for each, _ in lines.values() for at in each})
        rows = [[dict(zip(*each, strict=True)).get(at, 0.0) for at in times] for each in lines.values()]
        axes.stackplot(times, rows, labels=list(lines), alpha=0.75)
    else:
        for name, (at, values) in lines.items():
            axes.plot(at, values, label=name, linewidth=1.2)
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.set_ylim(bottom=0, top=panel.most)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6, frameon=False, ncols=2, loc="best")


async def main() -> None:
    manifest = yaml.safe_load((ROOT / "examples/01-quick-start/mamba.yaml").read_text())
    # So small that the cache turns over within the picture.
    manifest["spec"]["memory"] = {"arena": "12Mi"}
    manifest["spec"]["workload"] = {"promptTokens": 256, "outputTokens": 200, "concurrency": 4}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file, contextlib.ExitStack() as stack:
        yaml.safe_dump(manifest, file)
        file.flush()
        up = stack.enter_context(Command("up", file.name, "--port", "0"))
        url = (await asyncio.to_thread(up.wait_for, r"status page: (http://\S+)/ui"))[1]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/status") as answer:
            engine = (await answer.json())["engines"][0]["name"]
        with tempfile.TemporaryDirectory() as folder:
            jobs = {"gateway": url, "engine": f"http://{engine}"}
            with prometheus(Path(folder), jobs, {"groups": []}, "1s") as found:
                begin = time.time()
                await load(url)
                figure, grid = plt.subplots(len(STATE_CACHE.rows), 3, figsize=(11, 9), layout="constrained")
                for axes, panel in zip(grid.flat, STATE_CACHE.panels, strict=True):
                    draw(axes, panel, found, begin, time.time())
    plain = io.BytesIO()
    figure.savefig(plain, format="png", dpi=90)
    Image.open(plain).convert("RGB").quantize(64).save(OUT, optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
