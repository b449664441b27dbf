"""Events: past tense, one per thing that happened, in the words of the conditions, counted, not piled up."""

from mamba_api.v1alpha1 import Status
from mamba_operator.apply import AppliedChange
from mamba_operator.children.child_comparison import Change
from mamba_operator.conditions.status import summarize
from mamba_operator.objects.manifest import Manifest, Ref
from mamba_operator.pass_events import EventContent, event_manifest, pass_events, pending_event
from operator_objects import NOW, applied, fitting_owner, planned, running, snapshot

OF = fitting_owner()


def status(children: list[Manifest], of: Manifest = OF) -> Status:
    made = summarize(snapshot(of, children), planned(of, children), (), now=NOW)
    assert made is not None
    return made


def test_what_was_done_to_children_is_one_event_per_kind_of_change() -> None:
    done = [
        AppliedChange(Ref("Service", "nano"), Change.MISSING),
        AppliedChange(Ref("Deployment", "nano"), Change.MISSING),
        AppliedChange(Ref("Deployment", "nano-engine"), Change.DRIFTED, "spec.replicas"),
        AppliedChange(Ref("ConfigMap", "old"), Change.NOT_NEEDED),
    ]

    assert pass_events(Status(), None, done) == [
        EventContent("Normal", "Created", "Created Service nano, Deployment nano"),
        EventContent("Normal", "Repaired", "Repaired Deployment nano-engine (spec.replicas)"),
        EventContent("Normal", "Deleted", "Deleted ConfigMap old"),
    ]


def test_a_pass_that_changed_nothing_says_nothing() -> None:
    made = status(running(applied(OF)))

    assert pass_events(made, made, []) == []


def test_a_condition_that_flips_is_told_with_its_own_reason() -> None:
    before, after = status(running(applied(OF), engines=0)), status(running(applied(OF)))

    found = {one.reason: one for one in pass_events(before, after, [])}

    assert set(found) == {"ReplicasAvailable", "UpToDate", "Serving"}
    assert found["Serving"].message.startswith("Ready became True")


def test_a_fault_is_one_warning_however_many_conditions_carry_it() -> None:
    broken = fitting_owner(memory={"deviceMemory": "16Gi"})

    [event] = pass_events(Status(), status([], broken), [])

    assert (event.type, event.reason) == ("Warning", "PlanDoesNotFit")


def test_the_same_news_in_a_new_message_is_no_news() -> None:
    made = status(running(applied(OF)))
    reworded = made.model_copy(
        update={"conditions": [one.model_copy(update={"message": "other words"}) for one in made.conditions]}
    )

    assert pass_events(made, reworded, []) == []


def event(message: str = "Created Service nano") -> Manifest:
    return event_manifest(pending_event(OF, EventContent("Normal", "Created", message), NOW), reporter="me")


def test_an_event_points_at_its_object_and_is_named_by_what_it_says() -> None:
    made = event()

    assert made["involvedObject"]["uid"] == OF["metadata"]["uid"]
    assert made["metadata"]["namespace"] == "models"
    assert made["metadata"]["name"] == event()["metadata"]["name"] != event("other")["metadata"]["name"]
    assert len(event("words " * 1000)["message"]) == 1024
