"""The model cache: a Job fills it before engines start, and what it found is what the plan is made with."""

import copy
from datetime import datetime, timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import Status
from mamba_operator.conditions.status import summarize
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import DoesNotFit, Fits, Unknown
from mamba_operator.model.model_cache import is_cache_shared
from mamba_operator.model.model_load import REPORT_LAG_SECONDS, RETRY_SECONDS
from mamba_operator.objects.indices import Indices, index_id, indexed
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, Ref, ref
from mamba_operator.plan import make_plan
from mamba_planner.model_report import ModelReport
from model_loads import COMMIT, REPORT, cached, grown, job_of, loaded, loader_pod, loading, with_status
from operator_objects import NOW, TOKEN, applied, nano_config, owner, planned, running, snapshot, without


def later(of: Manifest, children: list[Manifest], seconds: float, **more: Any) -> ReconcilePlan:
    now = NOW + timedelta(seconds=seconds)
    return make_plan(snapshot(of, children, **more), now=now, new_token=lambda: TOKEN)


def status_of(of: Manifest, children: list[Manifest], **more: Any) -> Status:
    status = summarize(snapshot(of, children, **more), planned(of, children, **more), (), now=NOW)
    assert status is not None
    return status


def condition(status: Status, kind: str) -> tuple[str, str, str]:
    [found] = [one for one in status.conditions if one.type == kind]
    return found.status, found.reason, found.message


def made(plan: ReconcilePlan) -> set[Ref]:
    return {ref(one.manifest) for one in plan.applies}


def child(children: list[Manifest], kind: str, name: str) -> Manifest:
    [found] = [one for one in children if ref(one) == Ref(kind, name)]
    return found


ENGINE = Ref("Deployment", "nano-engine")


def test_nobody_downloads_before_there_is_a_volume_and_no_engine_starts_before_the_download() -> None:
    of = cached()
    first = applied(of)
    assert ENGINE not in set(map(ref, first))
    assert Ref("PersistentVolumeClaim", "nano-model") in set(map(ref, first))
    assert not [one for one in first if one["kind"] in ("Job", "Secret")]
    second = planned(of, first)
    assert [one.kind for one in made(second)] == ["Job"]
    status, reason, message = condition(status_of(of, loading(of)), "Progressing")
    assert (status, reason) == ("True", "DownloadingModel")
    assert "hf://org/model to PersistentVolumeClaim nano-model" in message
    assert "attempt 1 of 7" in message
    assert isinstance(planned(of, loading(of)).verdict, Unknown)


def test_the_report_makes_the_plan_before_any_engine_runs() -> None:
    of = cached()
    children = with_status(loading(of), "Complete")
    pods = (loader_pod(job_of(children), "Succeeded", REPORT.text()),)
    plan = planned(of, children, pods=pods)
    assert isinstance(plan.verdict, Fits)
    assert plan.verdict.plan.ledger[0].bytes == 17_778_000_000, "the files' own size, not a guess"
    assert made(plan) >= {ENGINE, Ref("ConfigMap", "nano-model"), Ref("ConfigMap", "nano-engine")}
    assert condition(status_of(of, children, pods=pods), "Planned")[:2] == ("True", "PlanComputed")


def test_what_was_found_outlives_the_pod_and_the_job() -> None:
    of = cached()
    children = loaded(of)
    assert planned(of, children).applies == ()
    bare = without(children, "Job", ref(job_of(children)).name)
    plan = planned(of, bare)
    assert isinstance(plan.verdict, Fits)
    assert (plan.applies, plan.load) == ((), None)


def test_engines_serve_the_commit_that_was_downloaded_and_ask_the_hub_nothing() -> None:
    of = cached("hf://org/model@main", model={"tokenSecretRef": {"name": "hub", "key": "k"}})
    children = loaded(of)
    pod = child(children, "Deployment", "nano-engine")["spec"]["template"]["spec"]["containers"][0]
    env = {one["name"]: one.get("value") for one in pod["env"]}
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "HF_TOKEN" not in env
    document = child(children, "ConfigMap", "nano-engine")["data"]["engine.json"]
    assert f"hf://org/model@{COMMIT}" in document
    loader = job_of(children)["spec"]["template"]["spec"]["containers"][0]
    assert {one["name"] for one in loader["env"]} >= {"HF_TOKEN", "HF_HOME"}
    assert "HF_HUB_OFFLINE" not in {one["name"] for one in loader["env"]}


@pytest.mark.parametrize(
    ("uri", "pinned", "variable"),
    [
        ("s3://bucket/model", f"s3://bucket/model?revision={COMMIT}", "AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/model", f"gs://bucket/model?revision={COMMIT}", "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("oci://registry/model:v1", f"oci://registry/model@sha256:{COMMIT}", "DOCKER_AUTH_CONFIG"),
        ("https://host/model/", f"https://host/model?revision={COMMIT}", "MAMBASERVE_MODEL_TOKEN"),
    ],
)
def test_only_the_loader_has_the_credentials_of_a_source_and_engines_its_commit(
    uri: str, pinned: str, variable: str
) -> None:
    children = loaded(cached(uri, model={"secretRef": {"name": "keys"}}))
    engine = child(children, "Deployment", "nano-engine")["spec"]["template"]["spec"]["containers"][0]
    assert variable not in {one["name"] for one in engine["env"]}
    assert pinned in child(children, "ConfigMap", "nano-engine")["data"]["engine.json"]
    loader = job_of(children)["spec"]["template"]["spec"]["containers"][0]
    [source] = [one["valueFrom"]["secretKeyRef"] for one in loader["env"] if one["name"] == variable]
    assert source["name"] == "keys"


OTHER = "beef" + "0" * 36


def kept(children: list[Manifest]) -> set[str] | None:
    """Return the files that the loader keeps on a full volume; None: everything."""
    [container] = job_of(children)["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    if "MAMBASERVE_DOWNLOAD_MAKE_ROOM" not in env:
        return None
    return set(env.get("MAMBASERVE_DOWNLOAD_KEEP", "").split())


def engine_pod(children: list[Manifest], name: str = "a") -> Manifest:
    """Return a pod of the engine Deployment."""
    pod = copy.deepcopy(child(children, "Deployment", "nano-engine")["spec"]["template"])
    return {**pod, "kind": "Pod", "metadata": {**pod["metadata"], "name": name}, "status": {}}


def finished(of: Manifest, children: list[Manifest], commit: str) -> list[Manifest]:
    """Return the children after the loader has fetched that commit."""
    done = with_status(children, "Complete")
    report = ModelReport(commit, REPORT.config, REPORT.weights)
    return grown(of, done, pods=(loader_pod(job_of(done), "Succeeded", report.text()),))


def ready_with(of: Manifest) -> list[Manifest]:
    """Return the children when engines of the first download serve."""
    return running(grown(of, running(loaded(of))))


def test_a_full_volume_keeps_what_engines_read_and_what_a_roll_back_needs() -> None:
    first, second, third = cached(), cached("hf://org/other"), cached("hf://org/third")
    assert kept(loading(first)) == set(), "nothing is read yet"
    ready = ready_with(first)
    reading = engine_pod(ready)
    begun = grown(second, ready, pods=(reading,))
    assert kept(begun) == {COMMIT}
    rolling = finished(second, begun, OTHER)
    # The second fails, and a third follows: one engine of the first serves, one of the second is on its way.
    failing = engine_pod(rolling, "b")
    assert kept(grown(third, rolling, pods=(reading, failing))) == {COMMIT, OTHER}
    # An engine of before, which does not say what it reads, keeps all of it; so does another deployment.
    unknown = copy.deepcopy(reading)
    del unknown["metadata"]["annotations"]
    assert kept(grown(third, rolling, pods=(unknown, failing))) is None
    assert kept(grown(third, rolling, pods=(reading,), cache_shared=True)) is None


def test_no_record_tells_of_a_copy_that_a_loader_may_remove() -> None:
    first, second, third = cached(), cached("hf://org/other"), cached("hf://org/third")
    ready = ready_with(first)
    rolling = finished(second, grown(second, ready), OTHER)
    # All went back to the first: nothing reads the second any more, whose download is still on record.
    back = [one for one in rolling if ref(one) != ENGINE] + [child(ready, "Deployment", "nano-engine")]
    plan = planned(third, back)
    assert Ref("ConfigMap", "nano-model") in {one.ref for one in plan.deletes}
    assert "Job" not in {one.kind for one in made(plan)}, "not before the record is gone"
    gone = grown(third, grown(third, back))
    assert kept(gone) == {COMMIT}
    assert job_of(grown(third, gone)) == job_of(gone), "a loader that runs stays as it was made"
    # Going back to the second downloads what was removed of it.
    ended = without(gone, "Job", job_of(gone)["metadata"]["name"])
    assert "Job" in {one.kind for one in made(planned(second, ended))}


def test_another_deployment_that_names_the_volume_is_seen() -> None:
    claim = "nano-model"
    pod = {"metadata": {"namespace": "models", "name": "p", "labels": {names.LABEL_INSTANCE: "b"}},
           "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": claim}}]}}  # fmt: skip
    far = owner("far", model={"uri": f"pvc://{claim}/x"}, metadata={"namespace": "elsewhere"})
    for kind, one, shared in (
        (
            MAMBA_DEPLOYMENT,
            owner("b", model={"uri": f"hf://a/b@{COMMIT}", "cache": {"claimName": claim}}),
            True,
        ),
        (MAMBA_DEPLOYMENT, owner("b", model={"uri": f"pvc://{claim}/x"}), True),
        (POD, pod, True),
        (MAMBA_DEPLOYMENT, owner("b", model={"uri": f"pvc://{claim}-2/x"}), False),
        (MAMBA_DEPLOYMENT, far, False),
        (MAMBA_DEPLOYMENT, cached(), False),
    ):
        indices = Indices()
        found = indexed(kind, one)
        indices.take({index_id(kind): {key: [manifest] for key, manifest in found.items()}})
        assert is_cache_shared(indices, Key("models", "nano")) is shared


def test_another_model_is_downloaded_while_engines_of_the_last_one_go_on() -> None:
    old, new = cached(), cached("hf://org/other")
    before = running(loaded(old))
    before = running(grown(old, before))
    assert child(before, "ConfigMap", "nano-last-ready")
    begun = grown(new, before)
    assert job_of(begun)["metadata"]["name"] != job_of(before)["metadata"]["name"]
    assert (
        child(begun, "Deployment", "nano-engine")["spec"]
        == child(before, "Deployment", "nano-engine")["spec"]
    )
    status = status_of(new, begun)
    assert condition(status, "Ready")[:2] == ("True", "Serving")
    assert condition(status, "UpToDate")[:2] == ("False", "DownloadingModel")
    done = with_status(begun, "Complete")
    other = ModelReport("b" * 40, nano_config(), REPORT.weights)
    after = grown(new, done, pods=(loader_pod(job_of(done), "Succeeded", other.text()),))
    assert "b" * 40 in child(after, "ConfigMap", "nano-engine")["data"]["engine.json"]


def test_what_was_never_ready_is_left_alone_while_another_model_is_downloaded() -> None:
    old, new = cached(), cached("hf://org/other")
    before = running(loaded(old), engines=0)
    plan = planned(new, grown(new, before))
    assert not plan.applies
    assert not plan.deletes
    assert ENGINE in set(map(ref, grown(new, before)))


@pytest.mark.parametrize("why", ["claim", "restart"])
def test_a_new_volume_and_a_restart_download_anew(why: str) -> None:
    of = cached()
    children = loaded(of)
    if why == "claim":
        children = copy.deepcopy(children)
        child(children, "PersistentVolumeClaim", "nano-model")["metadata"]["uid"] = "another"
    else:
        of["metadata"]["annotations"] = {names.ANNOTATION_RESTART: "now"}
    plan = planned(of, children)
    assert [one.kind for one in made(plan) if one.kind == "Job"] == ["Job"]
    assert [one.ref.kind for one in plan.deletes] == ["Job"]


def test_two_loaders_never_write_to_one_volume_at_once() -> None:
    old, new = cached(), cached("hf://org/other")
    before = loading(old)
    pods = (loader_pod(job_of(before), "Running"),)
    plan = planned(new, before, pods=pods)
    assert [one.ref.kind for one in plan.deletes] == ["Job"]
    assert not [one for one in made(plan) if one.kind == "Job"]
    assert plan.load is not None
    assert "has ended" in plan.load.message
    ended = (loader_pod(job_of(before), "Failed"),)
    assert [one.kind for one in made(planned(new, grown(new, before, pods=pods), pods=ended))] == ["Job"]
    spec = job_of(before)["spec"]
    assert (spec["parallelism"], spec["podReplacementPolicy"]) == (1, "Failed")


def test_a_loader_that_cannot_be_what_is_wanted_is_made_anew_until_it_is_done() -> None:
    of, corrected = cached(engine={"image": "wrong:1"}), cached(engine={"image": "right:1"})
    children = loading(of)
    assert [one.ref.kind for one in planned(corrected, children).deletes] == ["Job"]
    done = loaded(of)
    plan = planned(corrected, done)
    assert not plan.deletes
    assert not [one for one in made(plan) if one.kind == "Job"]


def test_a_first_failure_is_shown_and_a_second_one_is_a_fault() -> None:
    of = cached()
    for failed, degraded in ((1, "AsExpected"), (2, "DownloadFailed")):
        children = with_status(loading(of), failed=failed)
        pods = (
            loader_pod(job_of(children), "Failed", "the Hub cannot be reached"),
            loader_pod(job_of(children), "Running", name="nano-load-z"),
        )
        status = status_of(of, children, pods=pods)
        assert condition(status, "Degraded")[1] == degraded
        _, reason, message = condition(status, "Progressing")
        assert reason == "DownloadingModel"
        assert f"attempt {failed + 1} of 7 by pod nano-load-z" in message
        assert "the Hub cannot be reached; check spec.model.uri" in message


@pytest.mark.parametrize(
    ("fetched", "words"),
    [
        ({"nano-load-z": (3 << 30, 17 << 30)}, "by pod nano-load-z: 3.0Gi of 17.0Gi"),
        ({"nano-load-y": (3 << 30, 17 << 30)}, "by pod nano-load-z, whose log shows the progress"),
    ],
)
def test_the_status_says_how_many_bytes_are_there_where_the_loader_tells(
    fetched: dict[str, tuple[int, int]], words: str
) -> None:
    of = cached()
    children = loading(of)
    pods = (loader_pod(job_of(children), "Running", name="nano-load-z"),)
    seen = snapshot(of, children, pods=pods, downloads=fetched)
    status = summarize(seen, make_plan(seen, now=NOW, new_token=lambda: TOKEN), (), now=NOW)
    assert status is not None
    assert words in condition(status, "Progressing")[2]


def test_a_loader_that_gave_up_says_why_and_is_made_again_later() -> None:
    of = cached()
    children = with_status(loading(of), "Failed", failed=7)
    job = job_of(children)
    pods = (loader_pod(job, "Failed", "error: hf://org/model: the Hub has no model org/model"),)
    status = status_of(of, children, pods=pods)
    for kind in ("Degraded", "Ready"):
        found = condition(status, kind)
        assert found[1] == "DownloadFailed"
        assert "the Hub has no model org/model; check spec.model.uri" in found[2]
        assert "2026-01-02T12:10:00Z" in found[2]
        assert "Job nano-load-" in found[2]
    assert condition(status, "Progressing")[:2] == ("False", "DownloadFailed")
    plan = planned(of, children, pods=pods)
    assert plan.requeue_after == RETRY_SECONDS
    assert not plan.deletes
    assert [one.ref.kind for one in later(of, children, RETRY_SECONDS, pods=pods).deletes] == ["Job"]


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        (False, "it says; look at the events"),
        (True, "ran out of memory; raise the limit"),
    ],
)
def test_a_failure_without_words_of_its_own_is_named_by_what_is_known(pods: bool, words: str) -> None:
    of = cached()
    children = with_status(loading(of), "Failed", failed=7)
    seen = (loader_pod(job_of(children), "Failed", reason="OOMKilled"),) if pods else ()
    assert words in condition(status_of(of, children, pods=seen), "Degraded")[2]


def test_a_failed_download_takes_nothing_from_engines_that_serve() -> None:
    old, new = cached(), cached("hf://org/other")
    before = running(grown(old, running(loaded(old))))
    status = status_of(new, with_status(grown(new, before), "Failed", failed=7))
    assert condition(status, "Degraded")[:2] == ("True", "DownloadFailed")
    assert condition(status, "Ready")[:2] == ("True", "Serving")


def test_a_report_that_is_late_is_waited_for_and_one_that_is_lost_is_made_again() -> None:
    of = cached()
    children = with_status(loading(of), "Complete")
    plan = planned(of, children)
    assert plan.requeue_after == REPORT_LAG_SECONDS
    assert not plan.deletes
    assert ENGINE not in made(plan)
    assert [one.ref.kind for one in later(of, children, REPORT_LAG_SECONDS).deletes] == ["Job"]


def test_engines_plan_for_themselves_where_the_report_tells_nothing() -> None:
    of = cached()
    children = with_status(loading(of), "Complete")
    plan = planned(of, children, pods=(loader_pod(job_of(children), "Succeeded", "cut off"),))
    assert isinstance(plan.verdict, Unknown)
    assert ENGINE in made(plan)


def test_a_model_that_does_not_fit_keeps_its_report() -> None:
    of = cached(memory={"deviceMemory": "16Gi"})
    children = with_status(loading(of), "Complete")
    plan = planned(of, children, pods=(loader_pod(job_of(children), "Succeeded", REPORT.text()),))
    assert isinstance(plan.verdict, DoesNotFit)
    assert made(plan) == {Ref("ConfigMap", "nano-model")}


def test_a_model_that_cannot_fit_is_not_downloaded() -> None:
    of = cached(model={"config": nano_config()}, memory={"deviceMemory": "16Gi"})
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "nano-model", "uid": "c"}}
    assert planned(of, [claim]).applies == ()


def test_without_the_cache_the_loader_and_its_record_go_and_the_volume_stays() -> None:
    children = loaded(cached())
    plain = cached()
    del plain["spec"]["model"]["cache"]
    plan = planned(plain, children)
    assert {one.ref.kind for one in plan.deletes} == {"Job", "ConfigMap"}
    assert {one.ref.name for one in plan.deletes if one.ref.kind == "ConfigMap"} == {"nano-model"}


def test_the_loader_goes_where_engines_can_run() -> None:
    theirs = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    of = cached(
        resources={"gpus": 1},
        scheduling={
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": theirs,
        },
        engine={"env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}]},
    )
    pod = job_of(loading(of))["spec"]["template"]["spec"]
    of_gpus = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "gpu"}, [{"operator": "Exists"}, of_gpus])
    first, ours = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first == {"weight": 1}
    assert ours["preference"]["matchExpressions"][0]["key"] == "nvidia.com/gpu.memory"
    [beside] = pod["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert beside["podAffinityTerm"]["labelSelector"]["matchLabels"] == names.selector("nano", "engine")
    [container] = pod["containers"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in container["env"]
    assert container["args"][:2] == ["download", "hf://org/model"]


def test_the_loader_gets_on_in_the_cluster_as_engines_do_and_meets_a_quota_on_limits() -> None:
    ours = {"name": "ours"}
    template = {
        "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "imagePullSecrets": [ours], "dnsPolicy": "None", "securityContext": {"runAsUser": None},
            "volumes": [{"name": "ca", "configMap": ours}],
            "containers": [{
                "name": "engine", "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
                "resources": {"limits": {"cpu": "64"}},
                "env": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"}],
            }],
            "initContainers": [{"name": "loader", "resources": {"limits": {"memory": "2Gi"}}}],
        },
    }  # fmt: skip
    of = cached(podTemplate=template)
    job = job_of(loading(of))
    pod = job["spec"]["template"]
    [loader] = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert pod["spec"]["imagePullSecrets"] == [ours]
    assert (pod["spec"]["dnsPolicy"], "runAsUser" in pod["spec"]["securityContext"]) == ("None", False)
    assert {"name": "ca", "mountPath": "/ca"} in loader["volumeMounts"]
    assert {"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"} in loader["env"]
    assert loader["resources"]["limits"] == {"cpu": "4", "memory": "2Gi"}

    engine = child(running(loaded(of)), "Deployment", "nano-engine")
    assert "initContainers" not in engine["spec"]["template"]["spec"]


def test_the_loader_keeps_the_restricted_pod_security_standard_and_holds_no_token_of_the_cluster() -> None:
    pod = job_of(loading(cached()))["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        security = container["securityContext"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]


@pytest.mark.parametrize("name", ["n" * 52])
def test_the_longest_name_leaves_room_for_the_loader(name: str) -> None:
    assert len(names.Children(name).loader("0123456789")) <= 63


@pytest.mark.parametrize(
    ("started", "suspended", "refused", "again_in"),
    [
        (NOW - timedelta(seconds=60), False, True, None),
        (NOW - timedelta(seconds=20), False, False, 40.0),
        (NOW - timedelta(hours=1), True, False, None),
        (None, False, False, None),
    ],
)
def test_a_job_that_has_had_no_pod_for_a_minute_is_refused_one_unless_it_is_suspended(
    started: datetime | None, suspended: bool, refused: bool, again_in: float | None
) -> None:
    of = cached()
    children = loading(of)
    job = job_of(children)
    job["spec"]["suspend"] = suspended
    job["status"] = {"startTime": started.isoformat()} if started else {}

    assert condition(status_of(of, children), "Degraded")[1] == ("PodsRefused" if refused else "AsExpected")
    assert planned(of, children).requeue_after == again_in
    seen = {"pods": (loader_pod(job, "Pending"),)}
    assert condition(status_of(of, children, **seen), "Degraded")[1] == "AsExpected", "it has one"


def test_a_job_that_a_sidecar_keeps_goes_once_its_report_is_recorded_and_no_other_is_made() -> None:
    of = cached()
    children = loading(of)
    pod = loader_pod(job_of(children), "Succeeded", REPORT.text())
    pod["status"]["phase"] = "Running"
    pod["status"]["containerStatuses"].append({"name": "istio-proxy", "state": {"running": {}}})
    after = grown(of, children, pods=(pod,))

    plan = planned(of, after, pods=(pod,))

    assert [one.ref for one in plan.deletes] == [ref(job_of(after))]
    assert planned(of, without(after, "Job", ref(job_of(after)).name)).applies == ()


def test_a_job_whose_pod_has_yet_to_end_after_its_only_container_stays_with_its_log() -> None:
    of = cached()
    children = loading(of)
    pod = loader_pod(job_of(children), "Succeeded", REPORT.text())
    done = grown(of, with_status(children, "Complete"), pods=(pod,))
    ending = {**pod, "status": {**pod["status"], "phase": "Running"}}

    waiting = planned(of, children, pods=(ending,))

    assert (waiting.applies, waiting.deletes) == ((), ())
    assert planned(of, done, pods=(ending,)).deletes == ()
