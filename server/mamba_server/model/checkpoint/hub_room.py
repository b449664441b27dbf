"""Room on a volume of downloads: removes copies of models that nothing needs, and files that were cut off.

Called by `hub_copy` while it alone fills the cache, and only where whoever asks knows all who use the volume.
Torch-free.
"""

import shutil
from collections.abc import Collection
from pathlib import Path


def remove_cut_off(cache: Path) -> int:
    """Remove what downloads that ended had of a file. The Hub's client goes on with none of them.

    Returns the bytes that this frees.
    """
    return sum(map(_remove, cache.glob("models--*/blobs/*.incomplete")))


def remove_copies(cache: Path, keep: Collection[str]) -> list[str]:
    """Remove every model and every commit of one but those.

    What cannot be removed stays: whoever needs the room asks again how much there is.

    Args:
        cache: the Hub's cache (HF_HUB_CACHE).
        keep: commits that stay.

    Returns:
        Names of what went, as OWNER/NAME@COMMIT.
    """
    gone: list[str] = []
    for model in sorted(cache.glob("models--*")):
        copies = sorted(model.glob("snapshots/*"))
        kept = [copy for copy in copies if copy.name in keep]
        name = model.name.removeprefix("models--").replace("--", "/")
        gone += [f"{name}@{copy.name}" for copy in copies if copy not in kept]
        if not kept:
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
            # A branch whose commit is gone is looked up at the Hub anew.
            if ref.is_file() and ref.read_text(encoding="utf-8").strip() not in keep:
                ref.unlink(missing_ok=True)
    return gone


def _remove(file: Path) -> int:
    try:
        size = file.stat().st_size
        file.unlink()
    except OSError:
        return 0
    return size
