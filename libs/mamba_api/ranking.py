"""Bodies and answers of `/v1/rerank` and `/v1/score`, which compare texts by their vectors. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from mamba_api.embeddings import MOST_INPUTS, EmbeddingsUsage, PooledRequest, PooledTexts
from mamba_api.openai_fields import FAIL_FAST, Strict
from mamba_api.openai_responses import Explanations

_OF_CROSS_ENCODERS: Mapping[str, tuple[Any, ...]] = {
    "instruction": (), "chat_template": (), "activation": (), "use_activation": (), "softmax": (),
}  # fmt: skip
"""Fields by which other servers change the score of a model that reads both texts at once."""
_NOT_RANKED: Mapping[str, tuple[Any, ...]] = {
    **_OF_CROSS_ENCODERS, "rank_fields": (), "max_chunks_per_doc": (), "overlap_tokens": (),
    "return_embeddings": (), "relevant_spans": (),
}  # fmt: skip
_NOT_SCORED: Mapping[str, tuple[Any, ...]] = {
    **_OF_CROSS_ENCODERS, "data_1": (), "data_2": (), "items": (),
}  # fmt: skip
Texts = str | Annotated[list[str], Field(min_length=1), FAIL_FAST]


class TextDocument(Strict):
    """A document of a request for a ranking."""

    text: str
    """The text."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Texts of one request and the pairs of them that are compared; equal texts are read once.

    `names` are the fields of the body from which the two texts of a pair come.
    """

    names: tuple[str, str]
    firsts: Sequence[str]
    seconds: Sequence[str]
    most_tokens: int | None = None
    """Number of tokens that are read from the beginning of each second text; None = all."""

    @property
    def texts(self) -> PooledTexts:
        """The different texts, those of the first field before those of the second."""
        firsts, seconds = list(dict.fromkeys(self.firsts)), list(dict.fromkeys(self.seconds))
        (first, second), most = self.names, self.most_tokens
        names = [first] * len(firsts) + [second] * len(seconds)
        return PooledTexts(firsts + seconds, names, {} if most is None else {second: most})

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Positions in `texts` of the two texts of each pair; a single first text is in every pair."""
        firsts = {text: place for place, text in enumerate(dict.fromkeys(self.firsts))}
        seconds = {text: place for place, text in enumerate(dict.fromkeys(self.seconds), len(firsts))}
        lefts = self.firsts if len(self.firsts) > 1 else list(self.firsts) * len(self.seconds)
        return [(firsts[one], seconds[other]) for one, other in zip(lefts, self.seconds, strict=True)]

    def check(self) -> None:
        """Check the number of texts. Raises ValueError."""
        first, second = self.names
        if len(self.firsts) not in (1, len(self.seconds)):
            raise ValueError(
                f"{second}: must have one text for each of {first}: got {len(self.firsts)} and "
                f"{len(self.seconds)} texts"
            )
        if (count := len(self.texts.inputs)) > MOST_INPUTS:
            raise ValueError(
                f"{second}: at most {MOST_INPUTS} different texts are allowed in one request, {first} "
                f"included; got {count}"
            )


class RerankRequest(PooledRequest):
    """Body of `POST /v1/rerank` and `POST /v2/rerank`."""

    NOT_SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = _NOT_RANKED
    REFUSED_FIELDS: ClassVar[frozenset[str]] = frozenset(_NOT_RANKED)
    """Names of fields that are refused although the model has no such fields."""

    query: str
    """The text that documents are compared with."""
    documents: Annotated[list[str | TextDocument], Field(min_length=1), FAIL_FAST]
    """Texts, or objects with a `text`."""
    top_n: int | None = Field(None, ge=1, le=2**31 - 1)
    """Number of documents to return, those with the highest scores; defaults to all."""
    return_documents: bool | None = None
    """Whether the results repeat the texts of the documents; defaults to false."""
    max_tokens_per_doc: int | None = Field(None, ge=1, le=2**31 - 1)
    """Number of tokens to read from the beginning of each document; defaults to all."""

    @model_validator(mode="after")
    def _countable(self) -> "RerankRequest":
        self.comparison.check()
        return self

    @property
    def document_texts(self) -> list[str]:
        """Texts of the documents."""
        return [entry if isinstance(entry, str) else entry.text for entry in self.documents]

    @property
    def comparison(self) -> Comparison:
        """Pairs of the query and each document."""
        return Comparison(("query", "documents"), [self.query], self.document_texts, self.max_tokens_per_doc)


class ScoreRequest(PooledRequest):
    """Body of `POST /v1/score`: pairs of texts, as `text_1` and `text_2` or as `queries` and `documents`."""

    NOT_SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = _NOT_SCORED
    REFUSED_FIELDS: ClassVar[frozenset[str]] = frozenset(_NOT_SCORED)
    """Names of fields that are refused although the model has no such fields."""

    text_1: Texts | None = None
    """The first text of each pair, or one text for all pairs."""
    text_2: Texts | None = None
    """The second text of each pair."""
    queries: Texts | None = None
    """Another name of `text_1`."""
    documents: Texts | None = None
    """Another name of `text_2`."""

    @model_validator(mode="after")
    def _one_form(self) -> "ScoreRequest":
        present = {
            name for name in ("text_1", "text_2", "queries", "documents") if getattr(self, name) is not None
        }
        if present not in ({"text_1", "text_2"}, {"queries", "documents"}):
            raise ValueError("text_1: send either 'text_1' and 'text_2', or 'queries' and 'documents'")
        self.comparison.check()
        return self

    @property
    def comparison(self) -> Comparison:
        """Pairs of texts that are scored."""
        names = ("text_1", "text_2") if self.text_1 is not None else ("queries", "documents")
        firsts, seconds = (
            [texts] if isinstance(texts := getattr(self, name), str) else texts for name in names
        )
        return Comparison(names, firsts, seconds)


class RankedDocument(Strict):
    """The score of one document."""

    index: int
    """Position of the document in the request."""
    relevance_score: float = Field(ge=-1, le=1)
    """Cosine of the vectors of query and document."""
    document: TextDocument | None = None
    """The document, if requested."""


class RerankResponse(Strict):
    """Answer of `POST /v1/rerank`."""

    id: str
    """Identifier of the answer."""
    model: str
    """Name of the served model."""
    results: list[RankedDocument]
    """Documents, those with the highest scores first."""
    usage: EmbeddingsUsage
    """Tokens of the request."""
    mambaserve: Explanations | None = None
    """Explanations of what was resumed, with `X-Mambaserve-Explain: 1`: of the query, then of documents."""


class Score(Strict):
    """The score of one pair."""

    index: int
    """Position of the pair."""
    object: Literal["score"]
    """Always `score`."""
    score: float = Field(ge=-1, le=1)
    """Cosine of the vectors of both texts."""


class ScoreResponse(Strict):
    """Answer of `POST /v1/score`."""

    id: str
    """Identifier of the answer."""
    object: Literal["list"]
    """Always `list`."""
    created: int
    """Time of the answer, in seconds since 1970."""
    model: str
    """Name of the served model."""
    data: list[Score]
    """A score for each pair, in their order."""
    usage: EmbeddingsUsage
    """Tokens of the request."""
    mambaserve: Explanations | None = None
    """Explanations of what was resumed, with `X-Mambaserve-Explain: 1`: of the first texts,
    then of the second ones."""
