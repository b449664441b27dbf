"""Defects of the operator and the contracts: plan, status, drift, queue, lease, schema and rules."""

from seeded import Mutant

OPERATOR, API = "operator/mamba_operator/", "operator/mamba_api/"
UNIT = "tests/unit/operator/"
STATUS, PLAN, RENDER = UNIT + "test_status.py", UNIT + "test_plan.py", UNIT + "test_render.py"
LOAD = UNIT + "test_model_load.py"
CHANGE, MEASURED = UNIT + "test_workload_change.py", UNIT + "test_measured_workload.py"
TRAFFIC = UNIT + "test_measured_traffic.py"
DECIDE, COST = UNIT + "test_decide.py", UNIT + "test_deletion_cost.py"
PODS, SCALE, TROUBLE = (
    UNIT + "test_fields_of_pods.py",
    UNIT + "test_scaling_status.py",
    UNIT + "test_pod_trouble.py",
)

AUTOSCALE = "tests/properties/test_autoscale.py"
ENDS = UNIT + "test_rollout_ends.py"
ROLLOUTS = "tests/properties/test_rollouts.py"
OWN_CLAIM = "tests/unit/operator/test_own_claim.py"

MUTANTS = (
    Mutant(
        "engines may write to the copy of their node", "operator/mamba_operator/render/engine_pod.py",
        'read_only = {"readOnly": True} if context.own_claim else {}', "read_only = dict[str, bool]()",
        (OWN_CLAIM,),
    ),
    Mutant(
        "nobody fills a claim of the user's", "operator/mamba_operator/render/engine_pod.py",
        '{"initContainers": [loader_container(context)]} if context.own_claim else {}', "{}", (OWN_CLAIM,),
    ),
    Mutant(
        "an unknown profile is taken for none", "operator/mamba_operator/plan.py",
        "return ReconcilePlan(deployment, SpecInvalid(str(error)))\n\n\ndef _report_plan",
        "return deployment\n\n\ndef _report_plan",
        ("tests/unit/operator/test_profiles_of_pods.py",),
    ),
    Mutant(
        "a gateway may write to its MambaDeployment", OPERATOR + "render/access.py",
        '                "resources": [CONFIG_MAP.plural],', '                "resources": [names.PLURAL],',
        (UNIT + "test_render.py",),
    ),
    Mutant(
        "nobody wakes a deployment", OPERATOR + "plan.py",
        'snapshot.child("ConfigMap", context.children.wake)', "None",
        (UNIT + "test_life_of_a_deployment.py",),
    ),
    Mutant(
        "one engine is enough whatever the minimum", OPERATOR + "findings.py",
        "max(deployment.spec.scaling.min_replicas or 1, 1)", "1",
        (UNIT + "test_status.py",),
    ),
    Mutant(
        "a mistyped field counts as an outage", OPERATOR + "objects/errors.py",
        "if status == 500 and (found", "if status == 501 and (found",
        (UNIT + "test_reconcile.py",),
    ),
    Mutant(
        "what may not be read leaves no trace", OPERATOR + "reconcile.py",
        "            await self._report_forbidden(key, error)\n", "",
        (UNIT + "test_reconcile.py",),
    ),
    Mutant(
        "a roll-out that lost its old pods looks like a smaller scale", OPERATOR + "findings.py",
        "> 0 or engine.replicas > wanted > engine.ready:", "> 0:", (STATUS,),
    ),
    Mutant(
        "a model no engine serves is started", OPERATOR + "plan.py",
        "isinstance(pinned.verdict, SpecInvalid | PlanDoesNotFit | ModelNotServed)",
        "isinstance(pinned.verdict, SpecInvalid | PlanDoesNotFit)",
        (STATUS, PLAN),
    ),
    Mutant(
        "a model no engine serves passes as soon as its GPU is known", OPERATOR + "memory_plan.py",
        'if not_served is not None and spec.mode == "Active":', "if not_served is not None and False:",
        (UNIT + "test_memory_plan.py",),
    ),
    Mutant(
        "plan mode touches what runs", OPERATOR + "plan.py",
        '            or deployment.spec.mode == "Plan"\n', "", (PLAN,),
    ),
    Mutant(
        "a volume with downloaded weights goes with a change of mind", OPERATOR + "child_comparison.py",
        ' and one.kind != CLAIM.kind', "", (PLAN,),
    ),
    Mutant(
        "children of an object that is being deleted are made anew", OPERATOR + "plan.py",
        "if snapshot.owner is None or is_terminating(snapshot.owner):", "if snapshot.owner is None:", (PLAN,),
    ),
    Mutant(
        "a Secret that went is not made again for the pods that wait for it", OPERATOR + "mounted_secrets.py",
        "(waiting or engine is None or", "(engine is None or", (PLAN,),
    ),
    Mutant(
        "the token of the admin port is made anew in every pass", OPERATOR + "mounted_secrets.py",
        "waiting = any(map(is_being_created, snapshot.pods))", "waiting = True", (PLAN,),
    ),
    Mutant(
        "engines are made though their token was refused, and nobody misses it", OPERATOR + "apply.py",
        "token_missing and _mounts_token(change.manifest)", "False", (UNIT + "test_apply.py",),
    ),
    Mutant(
        "an edit of a child by hand stays", OPERATOR + "child_comparison.py",
        "            return Apply(manifest, Change.DRIFTED, \", \".join(fields))\n",
        "            return None\n", (PLAN,),
    ),
    Mutant(
        "a missing field of a list item is no drift", OPERATOR + "drift.py",
        "        if value not in by_identity:\n            yield where\n        else:\n",
        "        if value in by_identity:\n", (UNIT + "test_drift.py", PLAN),
    ),
    Mutant(
        "quantities are compared by their spelling", OPERATOR + "drift.py",
        "    if quantity:\n", "    if False:\n", (UNIT + "test_drift.py",),
    ),
    Mutant(
        "objects of others with our labels count as children", OPERATOR + "observe.py",
        "(children if owner_uid(item) == uid else foreign)", "(children)", (UNIT + "test_observe.py",),
    ),
    Mutant(
        "a failed list is an empty one", OPERATOR + "observe.py",
        "        raise failed.exceptions[0] from None\n", "        return Snapshot(key, owner)\n",
        (UNIT + "test_observe.py",),
    ),
    Mutant(
        "the largest GPU of the cluster is planned for", OPERATOR + "gpu_memory.py",
        "return min((size", "return max((size", (UNIT + "test_gpu_memory.py",),
    ),
    Mutant(
        "a node whose taint the pod does not tolerate counts", OPERATOR + "placement.py",
        " and all(_is_tolerated(taint, pod) for taint in node.taints)", "", (UNIT + "test_gpu_memory.py",),
    ),
    Mutant(
        "a cordoned node does not count until it takes pods again", OPERATOR + "placement.py",
        'if not str(taint.get("key")).startswith(PASSING)', "", (UNIT + "test_gpu_memory.py",),
    ),
    Mutant(
        "a node that joins changes the plan of what serves", OPERATOR + "plan_pin.py",
        "next(filter(None, found), PlanPin(revision, now))", "PlanPin(revision, now)",
        (UNIT + "test_plan_pin.py",),
    ),
    Mutant(
        "a revision that failed is tried again for ever", OPERATOR + "rollout/rollback.py",
        "noted is not None and noted.digest == wanted.digest", "False", (UNIT + "test_rollback.py",),
    ),
    Mutant(
        "the settings of a failed revision stay", OPERATOR + "render/engine.py",
        "json.dumps(engine_revision(context).document, indent=2)",
        "json.dumps(engine_document(context), indent=2)", (UNIT + "test_rollback.py",),
    ),
    Mutant(
        "a taken name is taken over", OPERATOR + "apply.py",
        "await _make(client, snapshot, change.manifest)", "await client.apply(change.manifest)",
        (UNIT + "test_apply.py",),
    ),
    Mutant(
        "one refused child keeps the others from being applied", OPERATOR + "apply.py",
        "                token_missing = token_missing or change.create_only\n        for removal",
        "                token_missing = token_missing or change.create_only\n"
        "                break\n        for removal",
        (UNIT + "test_apply.py",),
    ),
    Mutant(
        "an engine goes for a pod that would not get its place", OPERATOR + "rollout/in_place_rollout.py",
        " and any(_fits_in_place_of(pod, other) for other in old)", " and old",
        (UNIT + "test_in_place_rollout.py",),
    ),
    Mutant(
        "the record of an evicted engine keeps roll-outs in place", OPERATOR + "rollout/in_place_rollout.py",
        "is_engine(pod) and not has_ended(pod)]", "is_engine(pod)]",
        (UNIT + "test_in_place_rollout.py",),
    ),
    Mutant(
        "one engine that fails takes all of its revision back", OPERATOR + "rollout/outcome.py",
        "return bad >= started or (2 * bad > started and len(nodes) > 1)", "return bad > 0", (ENDS, ROLLOUTS),
    ),
    Mutant(
        "an upgrade of the operator replaces the engines of every object at once",
        OPERATOR + "engine_rollout.py", "if begins and not snapshot.may_begin:", "if False:",
        (UNIT + "test_rollout_turns.py",),
    ),
    Mutant(
        "an operator that may not read its key replaces all engines", OPERATOR + "main.py",
        "if key is not None or not await self._engines_have_key():", "if True:",
        (UNIT + "test_process.py",),
    ),
    Mutant(
        "what serves is taken back at the deadline", OPERATOR + "rollout/outcome.py",
        "facts.serving == 0:", "facts.serving >= 0:", (ENDS, ROLLOUTS),
    ),
    Mutant(
        "an engine counts as failing for longer than it was seen to", OPERATOR + "rollout/engine_history.py",
        "self._failing.get(name, now)", "datetime.min.replace(tzinfo=now.tzinfo)",
        (UNIT + "test_rollback.py",),
    ),
    Mutant(
        "in place one engine may be missing, also where others have no room", OPERATOR
        + "rollout/in_place_rollout.py", "max(replicas - places, 0) + 1", "1", (ENDS, ROLLOUTS),
    ),
    Mutant(
        "a quota keeps a roll-out from ever being in place", OPERATOR + "rollout/in_place_rollout.py",
        "        yield _refused_since(engine)", "        yield None", (ENDS, ROLLOUTS),
    ),
    Mutant(
        "a place that is empty for a moment lets one more engine go",
        OPERATOR + "rollout/in_place_rollout.py", "places = counted if left > 0 else places", "pass",
        (ENDS, ROLLOUTS),
    ),
    Mutant(
        "a quota is asked again when the cluster likes", OPERATOR + "render/engine.py",
        "        names.ANNOTATION_RETRY: context.retry,\n", "", (ENDS, ROLLOUTS),
    ),
    Mutant(
        "a roll-back is not told while engines are missing", OPERATOR + "findings.py",
        """        return Finding("False", Reason.ROLLED_BACK, _rolled_back(view.plan))
    if (stuck""", """        pass
    if (stuck""", (ENDS, ROLLOUTS),
    ),
    Mutant(
        "one engine that fails requests speaks for its revision", OPERATOR + "rollout/attempts.py",
        "return worst if engines[worst].failed else None", "return None", (UNIT + "test_attempts.py",),
    ),
    Mutant(
        "the engines that hold most go", OPERATOR + "deletion_cost.py", "[:fewer])", "[-fewer:])", (COST,),
    ),
    Mutant(
        "nobody is chosen to go", OPERATOR + "reconcile.py",
        "await mark_pods(self._client, fewer, self._read)", "pass",
        (COST,),
    ),
    Mutant(
        "a sleeping deployment never sleeps", OPERATOR + "autoscale/scaling_status.py",
        "desired, reason = 0, \"no request has come yet\"", "desired, reason = start, \"\"", (SCALE,),
    ),
    Mutant(
        "a wake starts one engine however many are wanted", OPERATOR + "autoscale/scaling_status.py",
        "engines = max(spec.replicas, 1)", "engines = 1", (SCALE,),
    ),
    Mutant(
        "a decision is carried out whatever number it was made of", OPERATOR + "autoscale/scaling_status.py",
        "        and latest_decision.asked == old.desired\n", "", (SCALE,),
    ),
    Mutant(
        "an answered wake wakes again", OPERATOR + "autoscale/scaling_status.py",
        " and wake != old.answered_wake:", ":",
        (SCALE,),
    ),
    Mutant(
        "engines that do not report let the fleet shrink", OPERATOR + "autoscale/decide.py",
        "if not observation.whole and asked > config.lowest:", "if False:", (DECIDE,),
    ),
    Mutant(
        "a load that nobody sees falls", OPERATOR + "autoscale/demand.py",
        "fast, slow = max(fast, memory.work_fast), max(slow, memory.work_slow)", "pass", (DECIDE, AUTOSCALE),
    ),
    Mutant(
        "what was recommended ages while nobody sees the load", OPERATOR + "autoscale/decide.py",
        "known=memory.known + (passed if whole and memory.whole_at >= 0 else 0.0)",
        "known=memory.known + passed", (DECIDE, AUTOSCALE),
    ),
    Mutant(
        "an engine that starts is idle", OPERATOR + "autoscale/decide.py",
        "if idle and not starts.coming and memory.at", "if idle and memory.at", (DECIDE,),
    ),
    Mutant(
        "it is not said that gateways are silent", OPERATOR + "autoscale/decide.py",
        "if config.min_replicas == 0 and idle is None and observation.traffic is None and floor >= asked:",
        "if False:", (DECIDE,),
    ),
    Mutant(
        "the last recommendation decides, not the largest of the window", OPERATOR + "autoscale/decide.py",
        "low = max(each for _, each in window)", "low = window[-1][1]", (DECIDE,),
    ),
    Mutant(
        "nobody asks gateways before the engines stop", OPERATOR + "autoscale/decide.py",
        "if traffic is None or (load", "if (load", (DECIDE,),
    ),
    Mutant(
        "pods that never start are made up for", OPERATOR + "autoscale/pod_starts.py",
        "replaced=len(stuck) if cluster_starts else 0,", "replaced=len(stuck),", (DECIDE,),
    ),
    Mutant(
        "a clock that is set forward is time that passed", OPERATOR + "autoscale/decide.py",
        "min(max(observation.at - memory.at, 0.0), config.longest_gap)",
        "max(observation.at - memory.at, 0.0)",
        (DECIDE,),
    ),
    Mutant(
        "the count of the spec reaches no Deployment", OPERATOR + "render/engine.py",
        '"replicas": context.replicas,', '"replicas": 1,', (PODS,),
    ),
    Mutant(
        "each process samples by itself", "operator/mamba_planner/trace_settings.py",
        '"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"', '"OTEL_TRACES_SAMPLER": "traceidratio"', (PODS,),
    ),
    Mutant(
        "engines are made before their model is downloaded", OPERATOR + "plan.py",
        "loading = load if context.loaded is None else None", "loading = None", (LOAD,),
    ),
    Mutant(
        "a loader begins while another one writes", OPERATOR + "model_load.py",
        "if (other := _still_running(snapshot.pods)) is not None:",
        "if (other := None) is not None:", (LOAD,),
    ),
    Mutant(
        "a loader that gave up is never made again", OPERATOR + "model_load.py",
        "if left <= 0:\n            return again", "if False:\n            return again", (LOAD,),
    ),
    Mutant(
        "engines follow a branch", OPERATOR + "render/engine_pod.py",
        "context.loaded is not None and context.loaded.commit", "False", (LOAD,),
    ),
    Mutant(
        "engines ask for a key that an old gateway does not show", OPERATOR + "rollout/key_rollout.py",
        "state.ready > 0 and all(map(mounts_key, pods))", "state.ready > 0", (UNIT + "test_key_rollout.py",),
    ),
    Mutant(
        "gateways stop showing a key that an old engine asks for", OPERATOR + "rollout/key_rollout.py",
        "has_key(engine) or any(is_engine(pod) and mounts_key(pod) for pod in living)", "has_key(engine)",
        (UNIT + "test_key_rollout.py",),
    ),
    Mutant(
        "the drain timeout is cut off by the pod's grace period", OPERATOR + "render/engine_pod.py",
        "grace = math.ceil(deployment.spec.rollout.drain_timeout.seconds) + GRACE_MARGIN", "grace = 30",
        (RENDER,),
    ),
    Mutant(
        "one restart is already trouble", OPERATOR + "objects/pod_trouble.py",
        "CRASHES_BEFORE_TROUBLE = 1", "CRASHES_BEFORE_TROUBLE = 0", (TROUBLE,),
    ),
    Mutant(
        "the mildest trouble is told first", OPERATOR + "objects/pod_trouble.py",
        "return min(found, key=", "return max(found, key=", (TROUBLE,),
    ),
    Mutant(
        "a wake during a pass is lost", OPERATOR + "process/workqueue.py",
        "            self._again.add(key)\n", "            pass\n", (UNIT + "test_workqueue.py",),
    ),
    Mutant(
        "a failing key comes back at once", OPERATOR + "process/workqueue.py",
        "self.add_after(key, max(delay, retry_after or 0.0))", "self.add_after(key, 0.0)",
        (UNIT + "test_workqueue.py",),
    ),
    Mutant(
        "a lease is judged by the clock of its holder's record", OPERATOR + "process/lease.py",
        "if previous is not None and previous.record.version == record.version:", "if previous is not None:",
        (UNIT + "test_lease.py", UNIT + "test_leadership.py"),
    ),
    Mutant(
        "the date of a condition moves with its message", API + "v1alpha1/conditions.py",
        "changed = old is None or old.status != status", "changed = old is None or old.message != message",
        ("tests/unit/api/test_conditions.py",),
    ),
    Mutant(
        "what this version refuses is accepted in Python", API + "v1alpha1/base.py",
        "holds=lambda self: getattr(self, attribute) is None,", "holds=lambda self: True,",
        ("tests/unit/api/test_rules_in_cel.py", "tests/unit/api/test_models.py"),
    ),
    Mutant(
        "what this version refuses is accepted by the API server", API + "v1alpha1/base.py",
        'cel=f"!has(self.{field})"', 'cel=f"true || has(self.{field})"',
        ("tests/unit/api/test_rules_in_cel.py", "tests/unit/api/test_schema.py"),
    ),
    Mutant(
        "a bound lets one more through", API + "v1alpha1/deployment.py",
        "self.replicas <= self.scaling.max_replicas", "self.replicas <= self.scaling.max_replicas + 1",
        ("tests/unit/api/test_rules_in_cel.py", "tests/unit/api/test_models.py"),
    ),
    Mutant(
        "rules stay out of the CRD", API + "v1alpha1/schema.py",
        "rules = (*model.rules, *model.change_rules)", "pass",
        ("tests/unit/api/test_schema.py",),
    ),
    Mutant(
        "an engine of a family that is only planned for boots",
        "operator/mamba_planner/families/support.py",
        "if model.family not in FAMILIES_SERVED:", "if False:",
        ("tests/unit/planner/test_support.py", UNIT + "test_memory_plan.py"),
    ),
    Mutant(
        "a checkpoint of quantized weights is served", "operator/mamba_planner/families/support.py",
        "if model.quantized is not None:", "if False:",
        ("tests/unit/planner/test_support.py", "tests/unit/engine/test_boot.py"),
    ),
    Mutant(
        "a convolution's activation is not looked at", "operator/mamba_planner/families/support.py",
        "mixer.activation not in CONVOLUTION_ACTIVATIONS_SERVED", "False",
        ("tests/unit/planner/test_support.py",),
    ),
    Mutant(
        "another strategy is taken without an announcement", OPERATOR + "workload/change.py",
        "        return _announced(old, best, now)\n    if takes - now",
        "        return WorkloadChange(take=True)\n    if takes - now",
        (CHANGE,),
    ),
    Mutant(
        "what is not measured any more is followed", OPERATOR + "workload/change.py",
        "    if not measured:\n", "    if False:\n", (CHANGE,),
    ),
    Mutant(
        "a clock that was set back keeps an announcement for ever", OPERATOR + "workload/change.py",
        "    if takes - now > NOTICE:\n", "    if False:\n", (CHANGE,),
    ),
    Mutant(
        "an engine that started anew is counted twice", OPERATOR + "workload/measured_workload.py",
        "old = [0.0] * len(names)", "pass", (MEASURED,),
    ),
    Mutant(
        "noise is written into the status", OPERATOR + "workload/workload_status.py",
        "(_due(old, now) and differs_clearly(recorded_workload(old), measured))", "True", (MEASURED,),
    ),
    Mutant(
        "the strategy in force is forgotten", OPERATOR + "render/engine.py",
        "names.ANNOTATION_CHOSEN_FOR: context.chosen_for,", "", (TRAFFIC,),
    ),
    Mutant(
        "what is pinned follows the traffic", OPERATOR + "effective_plan.py",
        'spec.workload_source == "Declared" or ', "", (TRAFFIC,),
    ),
    Mutant(
        "a declared concurrency is given up", OPERATOR + "effective_plan.py",
        "max(shown.concurrency, wanted or 1)", "shown.concurrency", (TRAFFIC,),
    ),
)  # fmt: skip
