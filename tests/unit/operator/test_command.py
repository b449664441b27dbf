"""`mambaserve operator`: settings from options and environment, an exit code for each kind of failure."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mamba_cli.commands import operate
from mamba_cli.errors import CliError, InvalidInput
from mamba_cli.main import COMMANDS
from mamba_operator.external_metrics.registration import registration_settings
from mamba_operator.objects.errors import LeadershipLost, OperatorError, SettingsInvalid
from mamba_operator.process.settings import OperatorSettings


def test_it_is_registered_under_its_public_name() -> None:
    assert "operate" in COMMANDS
    assert operate.NAME == "operator"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[OperatorSettings]:
    """Record the settings the operator was started with."""
    seen: list[OperatorSettings] = []

    async def run(settings: OperatorSettings, _shipped: object, _profiles: object) -> None:
        seen.append(settings)

    monkeypatch.setattr("mamba_operator.main.run", run)
    monkeypatch.setattr("mamba_telemetry.logs.set_up_logs", lambda **_: None)
    return seen


def test_options_become_settings(started: list[OperatorSettings]) -> None:
    operate.command(namespace=["a", "b"], kubeconfig="/k", liveness_port=0, resync=60.0, log_level="debug")

    [settings] = started
    assert settings.namespaces == ("a", "b")
    assert (settings.kubeconfig, settings.liveness_port, settings.resync) == ("/k", 0, 60.0)


def test_external_metrics_are_served_where_they_are_asked_for(
    started: list[OperatorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    operate.command()
    operate.command(external_metrics_port=7443, external_metrics_service="mine")

    without, served = started
    assert without.external_metrics_port is None
    monkeypatch.setenv("POD_IP", "192.0.2.1")
    of = registration_settings(served, "::", "sys")
    assert (of.namespace, of.service, of.host, of.port, of.address) == (
        "sys", "mine", "::", 7443, "192.0.2.1",
    )  # fmt: skip
    monkeypatch.setenv("POD_IP", "")
    assert registration_settings(served, "::", "sys").address is None


def test_what_has_no_option_comes_from_the_environment(
    started: list[OperatorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_LEASE_DURATION", "30")
    monkeypatch.setenv("MAMBASERVE_WORKERS", "9")

    operate.command()

    assert (started[0].lease_duration, started[0].workers) == (30.0, 9)


def test_scrapers_are_named_by_their_labels(started: list[OperatorSettings]) -> None:
    operate.command(scrapers='[{"namespaces": {"team": "sre"}, "pods": {"app.io/name": "agent"}}, {}]')
    operate.command(scrapers="[]")

    one, anybody = started[0].scrapers
    assert one.peer() == {
        "namespaceSelector": {"matchLabels": {"team": "sre"}},
        "podSelector": {"matchLabels": {"app.io/name": "agent"}},
    }
    assert anybody.peer() == {"namespaceSelector": {}, "podSelector": {}}
    assert started[1].scrapers == ()


@pytest.mark.parametrize(
    "wrong",
    [
        "prometheus", "{}", '[{"pod": {}}]', '[{"pods": {"a b": "x"}}]', '[{"pods": {"app": "x y"}}]',
        '[{"pods": {"/app": "x"}}]', '[{"namespaces": ["monitoring"]}]',
    ],
)  # fmt: skip
def test_scrapers_that_no_policy_could_name_are_refused(started: list[OperatorSettings], wrong: str) -> None:
    with pytest.raises(InvalidInput, match="--scrapers"):
        operate.command(scrapers=wrong)

    assert started == []


def test_a_wrong_value_names_its_option(started: list[OperatorSettings]) -> None:
    with pytest.raises(InvalidInput, match="--liveness-port"):
        operate.command(liveness_port=99999)

    assert started == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(SettingsInvalid("no way in"), 2), (LeadershipLost("lost"), 1), (OSError("in use"), 1)],
)
def test_failures_have_their_exit_codes(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, started: list[OperatorSettings]
) -> None:
    async def run(_: OperatorSettings, _shipped: object, _profiles: object) -> None:
        raise error

    monkeypatch.setattr("mamba_operator.main.run", run)

    with pytest.raises(CliError) as caught:
        operate.command()

    assert caught.value.exit_code == code
    assert str(error) in str(caught.value)


async def test_a_kubeconfig_that_is_not_there_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mamba_operator.main import run

    monkeypatch.setenv("KUBECONFIG", "")
    with pytest.raises(SettingsInvalid, match="--kubeconfig"):
        await run(OperatorSettings(kubeconfig=str(tmp_path / "absent")))


@pytest.mark.parametrize("text", ["current-context: nowhere\n", "[1", "text", "clusters: 5\n"], ids=range(4))
async def test_what_is_no_kubeconfig_is_wrong_usage(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mamba_operator.main import run

    monkeypatch.setenv("KUBECONFIG", "")
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(SettingsInvalid, match=r"--kubeconfig FILE"):
        await run(OperatorSettings(kubeconfig=str(file)))


def test_help_names_every_environment_variable() -> None:
    import typer

    app = typer.Typer()
    app.command()(operate.command)
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output

    for name in ("NAMESPACE", "KUBECONFIG", "LIVENESS_PORT", "LEASE_NAMESPACE", "RESYNC", "LOG_LEVEL"):
        assert f"MAMBASERVE_{name}" in text


def test_every_error_has_a_place_in_the_tree_of_its_module() -> None:
    import mamba_operator.objects.errors as module

    tree = module.__doc__ or ""
    for one in vars(module).values():
        if isinstance(one, type) and issubclass(one, OperatorError):
            assert one.__name__ in tree
