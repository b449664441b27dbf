"""Settings are checked once, in words."""

import pytest
from pydantic import ValidationError

from mamba_gateway.settings import GatewaySettings


def test_urls_are_normalised_and_doubles_dropped() -> None:
    given = ("http://a:1/", "http://a:1", "https://b/v1", "http://c/sub/")
    assert GatewaySettings(backend=given).backend == ("http://a:1", "https://b", "http://c/sub")


def test_the_environment_gives_a_list_separated_by_spaces(monkeypatch) -> None:
    monkeypatch.setenv("MAMBASERVE_BACKEND", " http://a:1  http://b:2 ")
    monkeypatch.setenv("MAMBASERVE_MAX_BODY_BYTES", "1MiB")
    settings = GatewaySettings()
    assert settings.backend == ("http://a:1", "http://b:2")
    assert settings.max_body_bytes == 1024 * 1024


@pytest.mark.parametrize("url", ["a:1", "ftp://a", "http://", "http://a?x=1", "http://a#x"])
def test_what_is_no_base_url_is_refused_by_name(url) -> None:
    with pytest.raises(ValidationError, match="URL"):
        GatewaySettings(backend=(url,))


@pytest.mark.parametrize("given", [{}, {"backend": ("http://a",), "deployment": "x"}])
def test_exactly_one_source_is_needed(given) -> None:
    with pytest.raises(ValidationError, match="either --backend"):
        GatewaySettings(**given)


def test_every_field_is_described() -> None:
    assert all(field.description for field in GatewaySettings.model_fields.values())
