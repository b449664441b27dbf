"""Adapters of a model that has no engine: a gateway lists those of its file, and follows the file."""

import asyncio
from pathlib import Path

import pytest

from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.models.adapter_names import AdapterNames, AdapterNamesError, follow_names
from virtual_time import in_virtual_time


@in_virtual_time
async def test_the_models_that_are_waited_for_follow_the_file(tmp_path: Path) -> None:
    path, pool = tmp_path / "adapters.txt", Pool(expected_model="base")
    names = AdapterNames(str(path))
    follower = asyncio.create_task(follow_names(names, pool))
    try:
        for text, served in (
            (None, {"base"}),
            ("sql\nfrench\n", {"base", "sql", "french"}),
            ("sql one", {"base", "sql", "one"}),
            ("no name!", {"base", "sql", "one"}),
            ("french\n", {"base", "french"}),
            ("x\n" * 300, {"base", "french"}),
        ):
            if text is not None:
                path.write_text(text)
            await asyncio.sleep(2)
            assert pool.names == {*pool.model_names()} == served
        assert not pool.may_serve("sql"), "an adapter that is gone is not waited for"
        with pytest.raises(AdapterNamesError, match=r"--adapter-names-file: .*300 names"):
            names.read()
    finally:
        follower.cancel()
