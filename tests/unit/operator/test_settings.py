"""Settings that cannot work are refused with advice; what is not said is found out."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from mamba_cli.commands import operate
from mamba_cli.errors import InvalidInput
from mamba_kube import access
from mamba_operator import main
from mamba_operator.process.settings import OperatorSettings


def test_the_defaults_can_work() -> None:
    settings = OperatorSettings()

    assert settings.renew_every * 3 <= settings.lease_duration


@pytest.mark.parametrize(("duration", "every"), [(15, 5.1), (15, 14), (5, 4), (1, 1), (11.9, 4)])
def test_a_lease_that_one_failed_renewal_would_cost_is_refused(duration: float, every: float) -> None:
    with pytest.raises(ValidationError, match=r"third"):
        OperatorSettings(lease_duration=duration, renew_every=every)


def test_a_shorter_lease_needs_a_shorter_period_and_the_message_says_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAMBASERVE_LEASE_DURATION", "6")

    with pytest.raises(InvalidInput, match=r"--renew-every: .*\b2 s"):
        operate.run({})


@pytest.mark.parametrize(("duration", "every"), [(15, 5), (6, 0.5), (60, 4)])
def test_a_lease_that_can_be_renewed_is_accepted(duration: float, every: float) -> None:
    assert OperatorSettings(lease_duration=duration, renew_every=every).renew_every == every


@pytest.mark.parametrize(
    ("name", "value"),
    [("lease_duration", 0), ("renew_every", -1), ("workers", 0), ("workers", 65), ("resync", 0),
     ("request_timeout", 0), ("reconcile_timeout", 0), ("stale_after", 0), ("exit_timeout", 0), ("lease", ""),
     ("lease", "x" * 64), ("identity", ""), ("liveness_port", -1), ("log_level", "loud")],
)  # fmt: skip
def test_a_value_without_a_meaning_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        OperatorSettings(**{name: value})  # type: ignore[arg-type]

    assert caught.value.errors()[0]["loc"] == (name,)


def test_a_wrong_duration_is_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMBASERVE_LEASE_DURATION", "soon")

    with pytest.raises(ValidationError) as caught:
        OperatorSettings()

    assert [one["loc"] for one in caught.value.errors()] == [("lease_duration",)]


def test_two_operators_on_one_machine_have_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "operator-0")
    monkeypatch.setattr("os.getpid", lambda: 7)

    assert OperatorSettings().identity == "operator-0-7"


def test_the_lease_lives_where_the_operator_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    account = tmp_path / "namespace"
    monkeypatch.setattr(access, "SERVICE_ACCOUNT_NAMESPACE", account)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)

    assert main.own_namespace(OperatorSettings()) == "default"
    assert main.own_namespace(OperatorSettings(namespace=("first", "second"))) == "first"
    account.write_text("from-the-account\n")
    assert main.own_namespace(OperatorSettings(namespace=("first",))) == "from-the-account"
    monkeypatch.setenv("POD_NAMESPACE", "from-the-pod")
    assert main.own_namespace(OperatorSettings()) == "from-the-pod"
