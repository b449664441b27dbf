"""Sources of files: the URI of a model, the adapters that are served beside it, and a model that drafts.

`Model` has the first two, and `Engine` the last. The operator and local mode hand them to the
engine, which loads them.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict

from mamba_api.choices import DRAFT_MODEL
from mamba_api.model_uri import FORMS, PINNED_PATTERN, URI_PATTERN, ModelUri, parse_model_uri
from mamba_api.v1alpha1.base import ApiModel, Rule, each_once, map_by

URI_RULE: JsonDict = {"rule": f"self.matches(r'{URI_PATTERN}')", "message": f"use {FORMS}"}
MAX_ADAPTERS = 32
"""Maximum number of adapters of a deployment, whose names gateways know before any engine runs."""

PLACES_STEP = 4
"""Multiple to which the number of places for adapters is rounded up where a deployment names none."""


def _check_uri(text: str) -> str:
    parse_model_uri(text)
    return text


Uri = Annotated[
    str,
    Field(min_length=1, max_length=1024, json_schema_extra={"x-kubernetes-validations": [URI_RULE]}),
    AfterValidator(_check_uri),
]


_DRAFTS = ("Off", "Auto", "Ngram", "Mtp")
_DRAFTS_PATTERN = rf"^({'|'.join(_DRAFTS)}|{DRAFT_MODEL}({URI_PATTERN.removeprefix('^').removesuffix('$')}))$"
_DRAFTS_FORMS = f"use {', '.join(_DRAFTS)}, or {DRAFT_MODEL} and the URI of a second model: {FORMS}"
DRAFTS_RULE: JsonDict = {"rule": f"self.matches(r'{_DRAFTS_PATTERN}')", "message": _DRAFTS_FORMS}


def _check_drafts(text: str) -> str:
    if re.fullmatch(_DRAFTS_PATTERN, text) is None:
        raise ValueError(_DRAFTS_FORMS)
    return text


Drafts = Annotated[
    str,
    Field(min_length=1, max_length=1030, json_schema_extra={"x-kubernetes-validations": [DRAFTS_RULE]}),
    AfterValidator(_check_drafts),
]
"""Value of `engine.speculation`: a kind of drafts, or `draft=` and the URI of a second model."""


class Adapter(ApiModel):
    """A LoRA adapter that engines serve beside the model."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
    """Name by which requests choose the adapter, as their `model`."""
    uri: Uri
    """Where the directory that PEFT wrote is: any form of model.uri but builtin://. Adapters are downloaded
    beside the model, into the same cache and with the same Secrets; with model.cache.size, engines serve the
    commit that the Job downloaded."""

    rules = (
        Rule(
            cel="!self.uri.matches('^builtin://')",
            message=(
                "no adapter is built in: use hf://, s3://, gs://, oci://, https://, pvc:// or file:// for "
                "model.adapters[].uri"
            ),
            holds=lambda self: self.location.scheme != "builtin",
        ),
    )

    @property
    def location(self) -> ModelUri:
        """The parsed URI."""
        return parse_model_uri(self.uri)

    @property
    def is_pinned(self) -> bool:
        """Whether the URI always leads to the same files."""
        return re.search(PINNED_PATTERN, self.uri) is not None


Adapters = Annotated[
    list[Adapter], Field(max_length=MAX_ADAPTERS, json_schema_extra=map_by("name")), each_once("name")
]
