"""`mambaserve operator`: settings from options and environment, an exit code for each kind of failure."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mamba_cli import main
from mamba_cli.commands import operate
from mamba_operator.external_metrics.registration import registration_settings
from mamba_operator.objects.errors import LeadershipLost, OperatorError, SettingsInvalid
from mamba_operator.process.settings import OperatorSettings

Run = Callable[..., tuple[int, str]]


def test_it_is_registered_under_its_public_name() -> None:
    assert "operator" in main.COMMANDS
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


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command, and return its exit code and all that it wrote."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["mambaserve", "operator", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        written = capsys.readouterr()
        return int(ended.value.code or 0), written.out + written.err

    return run


def test_options_become_settings(operator: Run, started: list[OperatorSettings]) -> None:
    code, _ = operator(
        "--namespace", "a", "--namespace", "b", "--kubeconfig", "/k", "--liveness-port", "0",
        "--resync", "60", "--image-pull-secret", "registry", "--log-level", "debug",
    )  # fmt: skip

    assert code == 0
    [settings] = started
    assert settings.namespace == ("a", "b")
    assert (settings.kubeconfig, settings.liveness_port, settings.resync) == ("/k", 0, 60.0)
    assert (settings.image_pull_secret, settings.log_level) == (("registry",), "debug")


def test_the_number_of_roll_outs_at_the_same_time_is_an_option(
    operator: Run, started: list[OperatorSettings]
) -> None:
    assert operator("--max-rollouts", "5")[0] == 0
    assert started[0].max_rollouts == 5


def test_lists_are_words_in_the_environment(
    operator: Run, started: list[OperatorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_NAMESPACE", "a b")
    monkeypatch.setenv("MAMBASERVE_IMAGE_PULL_SECRET", "registry")

    assert operator()[0] == 0
    assert operator("--namespace", "c")[0] == 0

    assert [settings.namespace for settings in started] == [("a", "b"), ("c",)]
    assert started[0].image_pull_secret == ("registry",)


def test_an_empty_variable_counts_as_absent(
    operator: Run, started: list[OperatorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NAMESPACE", "KUBECONFIG", "LIVENESS_PORT", "SCRAPERS", "RESOURCE_PROFILES"):
        monkeypatch.setenv(f"MAMBASERVE_{name}", "")

    assert operator()[0] == 0

    monkeypatch.undo()
    [settings] = started
    assert settings.model_dump(exclude={"identity"}) == OperatorSettings().model_dump(exclude={"identity"})


def test_external_metrics_are_served_where_they_are_asked_for(
    operator: Run, started: list[OperatorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator()
    operator("--external-metrics-port", "7443", "--external-metrics-service", "mine")

    without, served = started
    assert without.external_metrics_port is None
    monkeypatch.setenv("POD_IP", "192.0.2.1")
    of = registration_settings(served, "::", "sys")
    assert (of.namespace, of.service, of.host, of.port, of.address) == (
        "sys", "mine", "::", 7443, "192.0.2.1",
    )  # fmt: skip
    monkeypatch.setenv("POD_IP", "")
    assert registration_settings(served, "::", "sys").address is None


def test_settings_may_come_from_the_environment(
    operator: Run, started: list[OperatorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_LEASE_DURATION", "30")
    monkeypatch.setenv("MAMBASERVE_WORKERS", "9")

    operator()

    assert (started[0].lease_duration, started[0].workers) == (30.0, 9)


def test_scrapers_are_named_by_their_labels(operator: Run, started: list[OperatorSettings]) -> None:
    operator("--scrapers", '[{"namespaces": {"team": "sre"}, "pods": {"app.io/name": "agent"}}, {}]')
    operator("--scrapers", "[]")

    one, anybody = started[0].scrapers
    assert one.peer() == {
        "namespaceSelector": {"matchLabels": {"team": "sre"}},
        "podSelector": {"matchLabels": {"app.io/name": "agent"}},
    }
    assert anybody.peer() == {"namespaceSelector": {}, "podSelector": {}}
    assert started[1].scrapers == ()


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("prometheus", ""), ("{}", ""), ('[{"pod": {}}]', "0.pod"),
        ('[{"pods": {"a b": "x"}}]', "0.pods.a b"),
        ('[{"pods": {"app": "x y"}}]', "0.pods.app"), ('[{"pods": {"/app": "x"}}]', "0.pods./app"),
        ('[{"namespaces": ["monitoring"]}]', "0.namespaces"),
    ],
)  # fmt: skip
def test_scrapers_that_no_policy_could_name_are_refused(
    operator: Run, started: list[OperatorSettings], wrong: str, place: str
) -> None:
    code, text = operator("--scrapers", wrong)

    assert code == 2
    assert f"--scrapers: {place}" in text
    assert started == []


def test_a_wrong_value_names_its_option(operator: Run, started: list[OperatorSettings]) -> None:
    code, text = operator("--liveness-port", "99999", "--workers", "0")

    assert code == 2
    assert "--liveness-port" in text
    assert "--workers" in text
    assert started == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(SettingsInvalid("no way in"), 2), (LeadershipLost("lost"), 1), (OSError("in use"), 1)],
)
def test_failures_have_their_exit_codes(
    operator: Run,
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    started: list[OperatorSettings],
) -> None:
    async def run(_: OperatorSettings, _shipped: object, _profiles: object) -> None:
        raise error

    monkeypatch.setattr("mamba_operator.main.run", run)

    exit_code, text = operator()

    assert exit_code == code
    assert str(error) in text


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


def test_help_names_every_option_and_its_environment_variable(
    operator: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, text = operator("--help")

    assert code == 0
    for name in OperatorSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in text
        assert f"MAMBASERVE_{name.upper()}" in text


def test_every_error_has_a_place_in_the_tree_of_its_module() -> None:
    import mamba_operator.objects.errors as module

    tree = module.__doc__ or ""
    for one in vars(module).values():
        if isinstance(one, type) and issubclass(one, OperatorError):
            assert one.__name__ in tree
