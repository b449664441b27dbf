"""Settings are checked once, in words."""

import pytest
from pydantic import ValidationError

from mamba_api.v1alpha1 import MambaDeployment
from mamba_gateway.settings import GatewaySettings
from mamba_settings.engine_settings import EngineSettings


def test_urls_are_normalised_and_doubles_dropped() -> None:
    given = ("http://a:1/", "http://a:1", "https://b/v1", "http://c/sub/")
    assert GatewaySettings(backend=given).backend == ("http://a:1", "https://b", "http://c/sub")


def test_the_environment_gives_a_list_separated_by_spaces(monkeypatch) -> None:
    monkeypatch.setenv("MAMBASERVE_BACKEND", " http://a:1  http://b:2 ")
    monkeypatch.setenv("MAMBASERVE_MAX_BODY_BYTES", "1MiB")
    monkeypatch.setenv("MAMBASERVE_CORS_ORIGIN", "http://localhost:3000 *")
    settings = GatewaySettings()
    assert settings.cors_origin == ("http://localhost:3000", "*")
    assert settings.backend == ("http://a:1", "http://b:2")
    assert settings.max_body_bytes == 1024 * 1024


@pytest.mark.parametrize("url", ["a:1", "ftp://a", "http://", "http://a?x=1", "http://a#x"])
def test_what_is_no_base_url_is_refused_by_name(url) -> None:
    with pytest.raises(ValidationError, match="URL"):
        GatewaySettings(backend=(url,))


@pytest.mark.parametrize(
    "origin",
    ["https://a/", "https://a/b", "a.example.org", "HTTPS://A", "https://", "https://a,https://b", "**"],
)
def test_what_no_browser_calls_an_origin_is_refused_by_name(origin: str) -> None:
    for made in (lambda: GatewaySettings(backend=("http://h",), cors_origin=(origin,)),
                 lambda: EngineSettings(model="m", cors_origin=(origin,))):  # fmt: skip
        with pytest.raises(ValidationError, match="SCHEME://HOST") as caught:
            made()
        assert repr(origin) in str(caught.value)


@pytest.mark.parametrize("given", [{}, {"backend": ("http://a",), "deployment": "x"}])
def test_exactly_one_source_is_needed(given) -> None:
    with pytest.raises(ValidationError, match="either --backend"):
        GatewaySettings(**given)


def test_every_field_is_described() -> None:
    assert all(field.description for field in GatewaySettings.model_fields.values())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://h:99999", "Port out of range"),
        ("http://h:eight", "Port could not be cast"),
        ("http://h:0", "is not an http:// or https:// URL"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http:// h", "is not an http:// or https:// URL"),
        ("http://h\n", "is not an http:// or https:// URL"),
        ("unix:///run/x.sock", "is not an http:// or https:// URL"),
        ("http://:8000", "is not an http:// or https:// URL"),
    ],
)
def test_a_url_nobody_could_call_is_refused_at_the_start(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        GatewaySettings(backend=("http://good:1", url))
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://[::1]:8000", "https://h", "http://h:65535/engine", "http://10.0.0.1"]
)
def test_a_url_of_any_usual_form_is_kept(url: str) -> None:
    assert GatewaySettings(backend=(url,)).backend == (url,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 65536), ("port", -1), ("max_in_flight", 0), ("max_queue", -1), ("queue_timeout", 0),
        ("hold_timeout", -0.1), ("max_body_bytes", 0), ("body_timeout", 0), ("connect_timeout", 0),
        ("idle_timeout", 0), ("request_timeout", 0), ("max_attempts", 0), ("max_attempts", 11),
        ("probe_interval", 0), ("probe_timeout", 0), ("drain_timeout", -1), ("log_level", "loud"),
        ("max_body_bytes", "many"),
    ],
)  # fmt: skip
def test_a_limit_out_of_its_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        GatewaySettings(backend=("http://h",), **{name: value})


def test_limits_that_mean_at_once_are_taken() -> None:
    made = GatewaySettings(backend=("http://h",), max_queue=0, hold_timeout=0, drain_timeout=0, port=0)
    assert (made.max_queue, made.hold_timeout, made.drain_timeout) == (0, 0, 0)


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMBASERVE_MAX_IN_FLIGHT", "7")
    monkeypatch.setenv("MAMBASERVE_MAX_QUEUE", "8")
    made = GatewaySettings(backend=("http://h",), max_queue=9)
    assert (made.max_in_flight, made.max_queue) == (7, 9)


@pytest.mark.parametrize(
    ("text", "size"), [("32Mi", 32 * 2**20), ("1.5GiB", 3 * 2**29), ("2G", 2 * 10**9), (4096, 4096)]
)
def test_a_size_is_written_as_for_the_engine(text: str | int, size: int) -> None:
    assert GatewaySettings(backend=("http://h",), max_body_bytes=text).max_body_bytes == size


@pytest.mark.parametrize("text", ["1,5Gi", "32 many", "Mi"])
def test_a_size_that_would_be_read_in_part_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="max_body_bytes"):
        GatewaySettings(backend=("http://h",), max_body_bytes=text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"redis_url": "http://r"}, "must begin with one of redis://"),
        ({"redis_url": "redis://r"}, "--prefix-index-scope says which index"),
        ({"redis_url": "redis://r", "redis_url_file": "/f", "prefix_index_scope": "m"}, "not both"),
        ({"redis_url_file": "/f"}, "--prefix-index-scope says which index"),
    ],
)
def test_a_redis_that_cannot_be_used_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GatewaySettings(backend=("http://h",), **given)


def test_a_redis_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMBASERVE_REDIS_URL", "rediss://u:p@r:6380/1")
    monkeypatch.setenv("MAMBASERVE_PREFIX_INDEX_SCOPE", "m")
    assert GatewaySettings(backend=("http://h",)).redis_url == "rediss://u:p@r:6380/1"
    monkeypatch.delenv("MAMBASERVE_PREFIX_INDEX_SCOPE")
    assert GatewaySettings(deployment="d", namespace="n").prefix_index_scope is None


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValidationError, match="holdtimeout"):
        GatewaySettings(backend=("http://h",), holdtimeout=1)


def test_what_a_mambadeployment_says_too_has_the_same_default_here() -> None:
    deployment = MambaDeployment.model_validate(
        {"metadata": {"name": "n"}, "spec": {"model": {"uri": "hf://a/b"}}}
    )
    limits, alone = deployment.spec.gateway.limits, GatewaySettings(backend=("http://h",))
    assert (alone.max_in_flight, alone.max_queue) == (limits.max_in_flight, limits.max_queued)
    assert alone.queue_timeout == alone.hold_timeout == limits.queue_timeout.seconds
    assert alone.request_timeout == limits.request_timeout.seconds
    assert alone.max_body_bytes == limits.max_body_size.bytes == EngineSettings(model="m").max_body_bytes
    assert alone.drain_timeout == deployment.spec.rollout.drain_timeout.seconds
    routing = deployment.spec.gateway.routing
    assert (alone.prefix_weight, alone.load_weight) == (routing.prefix_weight, routing.load_weight)
