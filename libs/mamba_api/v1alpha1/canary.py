"""`spec.rollout.canary` and `status.canary`: a change of the engines that gets traffic step by step.

The operator decides by these parts; gateways know only the weight that is in force.
"""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.quantity import Duration
from mamba_api.v1alpha1.base import ApiModel, LongText, Rule, StatusModel, Text

Weight = Annotated[int, Field(ge=1, le=99)]
Requests = Annotated[int, Field(ge=1, le=100_000_000)]
Count = Annotated[int, Field(ge=0)]


class CanaryStep(ApiModel):
    """One step of a canary: a share of the requests, and how long it lasts.

    A step with neither hold nor requests lasts until somebody resumes or promotes the canary.
    """

    weight: Weight
    """Share of the conversations that the candidate answers, in per cent. Must not fall from step to step."""
    hold: Duration | None = None
    """How long the step lasts, from the moment at which all candidate engines of the step are ready."""
    requests: Requests | None = None
    """Number of requests that the candidate has to answer in the step. With hold, both have to be reached. A
    restarted operator counts from zero again."""


class CanaryShadow(ApiModel):
    """A phase before the first step in which the candidate answers copies of requests.

    Clients get the answers of the revision beside it; the answers of the candidate are compared and dropped.
    A phase with neither hold nor requests lasts until somebody resumes or promotes the canary.
    """

    percent: Annotated[int, Field(ge=1, le=100)]
    """Share of the conversations that are copied, in per cent."""
    hold: Duration | None = None
    """How long the phase lasts, from the moment at which all candidate engines of the phase are ready."""
    requests: Requests | None = None
    """Number of copies that have to be compared. With hold, both have to be reached. A restarted operator
    counts from zero again."""
    max_in_flight: Annotated[int, Field(ge=1, le=256)] = 8
    """Largest number of copies that each gateway sends at once. Requests beyond it are not copied."""
    max_different_answers: Annotated[float, Field(ge=0, le=100)] = 100.0
    """Per cent of the greedy or seeded requests to which the candidate may write another text. 100 switches
    the comparison off: texts are then counted, and end nothing."""


Increase = Annotated[float, Field(ge=0, le=1000)]


class CanaryAnalysis(ApiModel):
    """Comparison of the candidate with the revision that serves beside it."""

    confidence: Annotated[float, Field(ge=90, le=99.99)] = 99.0
    """Probability in per cent that a candidate within the bounds below is never aborted, over all comparisons
    of one canary together, if requests are independent."""
    max_error_increase: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Percentage points by which the share of failed requests may be higher with the candidate than with the
    revision beside it. 100 switches the comparison off."""
    max_ttft_increase: Increase = 10.0
    """Per cent by which the time to the first token of streamed answers may be longer. 1000 switches the
    comparison off."""
    max_tpot_increase: Increase = 10.0
    """Per cent by which the time per further token of streamed answers may be longer. 1000 switches the
    comparison off."""


class Canary(ApiModel):
    """A trial of each change that replaces engines, before it does.

    Candidate engines with the new revision serve a share of the traffic beside all engines of the ready one.
    """

    steps: Annotated[list[CanaryStep], Field(min_length=1, max_length=16)]
    """Steps in order. After the last one the candidate is promoted: all engines are replaced."""
    shadow: CanaryShadow | None = None
    """Copies of requests for the candidate before the first step; none = the first step comes at once."""
    analysis: CanaryAnalysis = CanaryAnalysis()
    """Limits beyond which the operator aborts the candidate; the requests of each step decide."""

    rules = (
        Rule(
            cel="self.steps.map(step, step.weight).isSorted()",
            message="a later step of rollout.canary has a lower weight, which would take conversations back "
            "from the candidate: order the steps by weight",
            holds=lambda self: (
                [step.weight for step in self.steps] == sorted(step.weight for step in self.steps)
            ),
        ),
    )


class CanaryComparison(StatusModel):
    """One measure of the candidate beside the other revision, in the present step."""

    measure: Literal["errors", "ttft", "tpot", "answers"]
    """The measure that is compared. answers: texts of greedy or seeded requests and of their copies."""
    candidate: Text
    """The candidate's number, such as 3 of 120 (2.5%) or a median of 0.21 s over 118 answers."""
    stable: Text
    """The same of the revision beside it."""
    looks: Count = 0
    """Number of comparisons so far, over which the confidence is spread."""


class CanaryStatus(StatusModel):
    """The canary under way."""

    revision: Annotated[str, Field(max_length=63)]
    """Revision of the candidate: the value of the label serving.mambaserve.io/revision of its pods."""
    stable_revision: Annotated[str, Field(max_length=63)]
    """Revision that serves beside it."""
    phase: Literal["Starting", "Running", "Waiting", "Paused", "Promoting"]
    """Starting: the engines of the step are not ready. Running: the step lasts. Waiting: the step lasts until
    a person resumes or promotes. Paused: no further step begins. Promoting: all engines are being
    replaced."""
    step: Count = 0
    """Number of the present step, from 1; 0 = copies of requests before the first step."""
    steps: Count = 0
    """Number of steps."""
    weight: Annotated[int, Field(ge=0, le=100)] = 0
    """Share of the conversations that the candidate answers now, in per cent."""
    shadow: Annotated[int, Field(ge=0, le=100)] = 0
    """Share of the conversations of which the candidate gets copies now, in per cent."""
    engines: Annotated[str, Field(max_length=32)] = ""
    """Ready candidate engines out of the desired number, such as 1/2."""
    requests: Count = 0
    """Requests, or compared copies, that the candidate has answered or failed in this step."""
    verdict: LongText = ""
    """The result of the comparisons, in words."""
    comparisons: Annotated[list[CanaryComparison], Field(max_length=4)] = []
    """The numbers behind the verdict."""
