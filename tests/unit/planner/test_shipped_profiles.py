"""The resource profiles that ship: of cards whose size the planner knows, on nodes that have these."""

import pytest

from mamba_planner.cards.gpu_sizes import MIB, MIB_OF
from mamba_planner.cards.shipped_profiles import SHIPPED

GPUS = sorted(name for name, one in SHIPPED.items() if one.gpus)


@pytest.mark.parametrize("name", GPUS)
def test_a_profile_of_a_gpu_says_how_large_it_is_and_which_nodes_have_it(name: str) -> None:
    one = SHIPPED[name]
    assert one.device_memory is not None
    [card] = [card for card, mib in MIB_OF.items() if mib * MIB == one.device_memory.bytes]
    [product] = one.node_selector.values()
    assert one.node_selector.keys() == {"nvidia.com/gpu.product"}
    assert card.split()[0] in product
    assert card.split()[0].lower() in name


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_profile_asks_for_processors_and_memory(name: str) -> None:
    one = SHIPPED[name]
    assert one.cpu is not None
    assert one.memory is not None
    assert (one.gpus == 0) == name.startswith("cpu-") == (not one.node_selector)


def test_no_two_profiles_are_the_same() -> None:
    said = [one.model_dump_json() for one in SHIPPED.values()]
    assert len(set(said)) == len(said)
