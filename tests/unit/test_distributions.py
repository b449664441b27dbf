"""Contents of the extras, as they are installed."""

from distributions import brought_by

EXTRAS = ("operator", "gateway", "endpoint-picker", "telemetry")
"""Without "server": torch has files by the ten thousand."""


def test_no_two_packages_install_the_same_file() -> None:
    """Which of them would be imported is a matter of the order in which they were installed."""
    found = brought_by(EXTRAS)
    assert {"grpcio", "protobuf", "opentelemetry-proto"} <= set(found)
    owners: dict[str, set[str]] = {}
    for name, here in found.items():
        for file in here.files or ():
            owners.setdefault(str(file), set()).add(name)
    assert {file: names for file, names in owners.items() if len(names) > 1} == {}
