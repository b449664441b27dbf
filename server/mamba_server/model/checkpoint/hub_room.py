"""Frees space in the Hub's cache: removes copies of models that no process needs, and interrupted downloads.

`hub_copy` calls it while it holds the cache's lock, and only if its caller knows all users of the volume.
Torch-free.
"""

import shutil
from collections.abc import Collection
from pathlib import Path


def remove_cut_off(cache: Path) -> int:
    """Remove the parts of files of interrupted downloads, which the Hub's client never resumes.

    Return the number of bytes freed.
    """
    return sum(map(_remove, cache.glob("models--*/blobs/*.incomplete")))


def remove_copies(cache: Path, keep: Collection[str]) -> list[str]:
    """Remove all copies of models except the ones of the commits `keep`.

    Files that cannot be removed stay; callers measure the free space again.

    Args:
        cache: the Hub's cache (HF_HUB_CACHE).
        keep: commits that stay.

    Returns:
        Names of the removed copies, as OWNER/NAME@COMMIT.
    """
    removed: list[str] = []
    for model in sorted(cache.glob("models--*")):
        copies = sorted(model.glob("snapshots/*"))
        kept = [copy for copy in copies if copy.name in keep]
        name = model.name.removeprefix("models--").replace("--", "/")
        removed += [f"{name}@{copy.name}" for copy in copies if copy not in kept]
        # What another store than the Hub has sent of a commit that stays is continued.
        if not kept and not any((model / "partial" / commit).exists() for commit in keep if commit):
            shutil.rmtree(model, ignore_errors=True)
            continue
        for copy in copies:
            if copy not in kept:
                shutil.rmtree(copy, ignore_errors=True)
        needed = {link.resolve().name for copy in kept for link in copy.rglob("*") if link.is_symlink()}
        for blob in model.glob("blobs/*"):
            if blob.name not in needed:
                _remove(blob)
        for ref in model.glob("refs/**/*"):
            # Without the reference, the client asks the Hub for the branch's commit again.
            if ref.is_file() and ref.read_text(encoding="utf-8").strip() not in keep:
                ref.unlink(missing_ok=True)
    return removed


def _remove(file: Path) -> int:
    try:
        size = file.stat().st_size
        file.unlink()
    except OSError:
        return 0
    return size
