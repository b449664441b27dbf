"""Packs a chart as helm does, but with the same bytes each time: helm writes the time of packing into it.

`build` calls it. A test on the packed chart asks helm.
"""

import gzip
import io
import tarfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path


def pack_chart(chart: Path, target: Path, seconds: int) -> None:
    """Write the chart into the archive `target`.

    Args:
        chart: the chart's folder.
        target: the file to write.
        seconds: time of every file in it, in seconds since 1970.
    """
    ignored = _patterns(chart / ".helmignore")
    files = [path for path in chart.rglob("*") if path.is_file() and not _is_ignored(path, chart, ignored)]
    # Helm reads the archive as a stream, and Chart.yaml first is how it writes one.
    files.sort(key=lambda path: (path.name != "Chart.yaml", path.relative_to(chart).as_posix()))
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in files:
            entry = tarfile.TarInfo(f"{chart.name}/{path.relative_to(chart).as_posix()}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, seconds, 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    # Without a name and a time in its header.
    target.write_bytes(gzip.compress(content.getvalue(), mtime=0))


def _patterns(ignore_file: Path) -> Sequence[str]:
    if not ignore_file.is_file():
        return ()
    lines = (line.strip() for line in ignore_file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _is_ignored(path: Path, chart: Path, patterns: Sequence[str]) -> bool:
    return path.name == ".helmignore" or any(
        fnmatch(part, pattern) for part in path.relative_to(chart).parts for pattern in patterns
    )
