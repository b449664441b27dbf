"""Draws the newest results of the cache benchmarks as SVG for the documentation.

Run as `python -m benchmarks.cache.plots`, after `hit_rate` and `real_engine`; writes to docs/assets.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.cache.record import RESULTS

ASSETS = Path(__file__).parents[2] / "docs" / "assets"


def newest(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Return the latest recorded result of a benchmark; None if there is none."""
    paths = sorted(folder.glob(f"*-{name}.json"))
    if not paths:
        return None
    result: dict[str, Any] = json.loads(paths[-1].read_text(encoding="utf-8"))
    return result


def series(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return (slots, hit rate) in order of slots, for each eviction policy and KV. Pure."""
    out: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        beside = row["kv_tokens_beside"]
        kv = f"with {beside / 1e6:.2f} M tokens of KV" if beside else "slots alone"
        out.setdefault(f"{row['eviction']}, {kv}", []).append((row["slots"], row["hit_rate"]))
    return {label: sorted(points) for label, points in out.items()}


def hit_rates(found: dict[str, Any], path: Path) -> None:
    """Hit rate by slots, with the bound."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same input gives the same file.
    mpl.rcParams["svg.hashsalt"] = "mambaserve"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for label, points in series(found["rows"]).items():
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.axhline(found["bound"], color="grey", linestyle="--", label="endless attention KV")
    axes.set_xscale("log")
    axes.set_xlabel("state slots")
    axes.set_ylabel("share of prompt tokens resumed")
    axes.set_ylim(0, 1.1 * found["bound"])
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def strategies(found: dict[str, Any], path: Path) -> None:
    """Draw concurrency, hit rate and throughput of each strategy by arena size."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "mambaserve"
    from matplotlib import pyplot

    rows = found["strategies"]
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    sizes = sorted({row["arena_mib"] for row in rows})
    panels = (
        ("most_running", "sequences at once"),
        ("hit_rate", "share of prompt tokens resumed"),
        ("tokens_per_cpu_second", "tokens per CPU second"),
    )
    figure, all_axes = pyplot.subplots(1, 3, figsize=(11, 3.6))
    for axes, (key, label) in zip(all_axes, panels, strict=True):
        for index, name in enumerate(names):
            values = [
                next(r[key] for r in rows if (r["strategy"], r["arena_mib"]) == (name, s)) for s in sizes
            ]
            axes.bar([at + 0.27 * (index - 1) for at in range(len(sizes))], values, 0.25, label=name)
        axes.set_xticks(range(len(sizes)), [f"{size:g} MiB" for size in sizes])
        axes.set_title(label, fontsize=10)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="upper center", ncols=3, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Draw what has been measured."""
    ASSETS.mkdir(parents=True, exist_ok=True)
    for name, draw, file in (
        ("cache-hit-rate", hit_rates, "cache-hit-rate.svg"),
        ("cache-real-engine-350m", strategies, "cache-strategies.svg"),
    ):
        if (result := newest(name)) is None:
            print(f"no result of {name} in {RESULTS}", file=sys.stderr)
        else:
            draw(result, ASSETS / file)


if __name__ == "__main__":
    main()
