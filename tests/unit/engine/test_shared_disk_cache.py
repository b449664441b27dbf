"""A directory of disk caches that engines share, as on a claim of a cluster: each has a folder of its own."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from mamba_server.engine.transfers import start
from mamba_server.engine.transfers.transports import TransfersUnusable
from mamba_settings.engine_settings import EngineSettings
from mamba_tier.bundle_store import BundleStore
from transfer_models import layout_of, mamba_model


def store(directory: Path, *, shared: bool = True) -> BundleStore:
    settings = EngineSettings(
        model="builtin://x", disk_cache=str(directory), disk_cache_bytes=1 << 20, disk_cache_shared=shared
    )
    return start._open_store(settings, layout_of(mamba_model(2, 2)))


def folders(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_each_engine_of_a_shared_directory_has_a_folder_that_the_next_one_finds(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    try:
        assert folders(tmp_path) == ["0", "1"]
        first.close()
        third = store(tmp_path)
        assert folders(tmp_path) == ["0", "1"]
        third.close()
    finally:
        second.close()


def test_a_directory_that_is_not_shared_belongs_to_one_engine(tmp_path: Path) -> None:
    only = store(tmp_path, shared=False)
    try:
        with pytest.raises(TransfersUnusable, match="give each engine its own directory"):
            store(tmp_path, shared=False)
    finally:
        only.close()


def test_a_directory_without_a_free_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "MAX_SHARED_FOLDERS", 1)
    only = store(tmp_path)
    try:
        with pytest.raises(TransfersUnusable, match="other engines use all 1 folders"):
            store(tmp_path)
    finally:
        only.close()


def test_sharing_without_a_directory_is_refused() -> None:
    with pytest.raises(ValidationError, match="set disk_cache"):
        EngineSettings(model="x", disk_cache_shared=True)
