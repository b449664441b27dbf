"""The device's table of pages is the host's, and long changes cost no more than their entries."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mamba_kernels.sample.parameters import packed_size
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.model.decode_inputs import DecodeInputs
from mamba_server.model.page_table import MIN_RUN_ENTRIES, PageTable

CPU = torch.device("cpu")


@given(st.data())
def test_it_is_the_hosts_table_after_any_changes(data: st.DataObject) -> None:
    width = 3 * MIN_RUN_ENTRIES
    batch, table = PersistentBatch(2, width), PageTable(4, width, CPU)
    rows = [batch.add(1, 0) for _ in range(4)]
    page = 1
    for _ in range(data.draw(st.integers(1, 5))):
        for row in data.draw(st.lists(st.sampled_from(rows), unique=True)):
            room = width - int(batch.page_count[row])
            count = min(
                room,
                data.draw(
                    st.sampled_from([0, 1, 2, MIN_RUN_ENTRIES - 1, MIN_RUN_ENTRIES, MIN_RUN_ENTRIES + 7])
                ),
            )
            batch.append_pages(row, np.arange(page, page + count, dtype=np.int32))
            page += count
            replaced = data.draw(st.integers(0, int(batch.page_count[row])))
            batch.replace_pages(row, np.arange(page, page + replaced, dtype=np.int32))
            page += replaced
        some = np.array(data.draw(st.lists(st.sampled_from(rows), unique=True)), np.int32)
        table.write(*batch.unsent_pages(some))
        for row in some.tolist():
            count = int(batch.page_count[row])
            assert table.entries[row, :count].tolist() == batch.pages[row, :count].tolist()


def test_a_long_context_whose_pages_are_replaced_sends_its_entries_alone() -> None:
    width = 131_072 // 16
    batch, table = PersistentBatch(128, width), PageTable(256, width, CPU)
    rows = np.array([batch.add(1, 0) for _ in range(256)], np.int32)
    for row in rows:
        batch.append_pages(int(row), np.arange(1, (width if row == rows[0] else 64) + 1, dtype=np.int32))
    table.write(*batch.unsent_pages(rows))
    for row in rows[1:]:
        batch.append_pages(int(row), np.array([7], np.int32))
    batch.replace_pages(int(rows[0]), np.arange(9, 9 + width, dtype=np.int32))
    assert table.write(*batch.unsent_pages(rows)) == 4 * width + 8 * 255
    assert table.entries[rows[0], [0, -1]].tolist() == [9, 8 + width]
    assert table.write(*batch.unsent_pages(rows)) == 0


def test_a_decode_step_of_256_rows_sends_less_than_64_kib_even_when_a_long_context_is_replaced() -> None:
    width = 131_072 // 16
    batch, table = PersistentBatch(128, width), PageTable(256, width, CPU)
    rows = np.array([batch.add(1, 0) for _ in range(256)], np.int32)
    batch.append_pages(int(rows[0]), np.arange(1, width + 1, dtype=np.int32))
    table.write(*batch.unsent_pages(rows))
    batch.replace_pages(int(rows[0]), np.arange(2, width + 2, dtype=np.int32))
    for row in rows[1:]:
        batch.append_pages(int(row), np.array([7], np.int32))
    inputs = DecodeInputs(256, 256, table.entries)
    parameters = 4 * packed_size(256)
    sent = table.write(*batch.unsent_pages(rows)) + inputs._staged.on_device.nbytes + parameters
    assert sent < 64 * 1024
