"""Names are deterministic and always legal in Kubernetes."""

import re

from mamba_api import names
from mamba_api.v1alpha1 import Engine, Gateway, MambaDeployment
from mamba_api.v1alpha1.deployment import NAME_PATTERN

LONGEST = "n" * names.MAX_NAME_LENGTH


def test_children_are_called_as_the_reference_says() -> None:
    children = names.Children("nano")
    assert children.engine == "nano-engine"
    assert children.gateway == "nano"
    assert children.wake == "nano-wake"
    assert children.admin_secret("0d9f6c1e-8a") == "nano-admin-0d9f6c1e"


def test_every_child_of_the_longest_name_is_a_dns_label() -> None:
    children = names.Children(LONGEST)
    for name in (children.engine, children.wake, children.gateway,
                 children.service_account, children.model_cache):  # fmt: skip
        assert len(name) <= 63
        assert re.fullmatch(NAME_PATTERN[1:-1], name)


def test_the_selector_is_a_part_of_the_labels() -> None:
    assert names.selector("nano", "engine").items() <= names.labels("nano", "engine").items()


def test_the_selectors_of_two_components_never_match_each_other() -> None:
    assert not names.selector("nano", "engine").items() <= names.labels("nano", "gateway").items()


def test_the_url_is_the_service_of_the_gateway() -> None:
    assert names.url("nano", "ml") == "http://nano.ml.svc/v1"


def test_the_api_version_of_the_model_is_the_one_of_the_names() -> None:
    assert MambaDeployment.model_fields["api_version"].default == names.API_VERSION
    assert MambaDeployment.model_fields["kind"].default == names.KIND
    assert f"{names.PLURAL}.{names.GROUP}" == names.CRD_NAME


def test_no_image_is_written_into_objects() -> None:
    assert (Gateway().image, Engine().image) == (None, None)
