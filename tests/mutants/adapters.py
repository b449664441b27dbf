"""Defects of adapters: what one computed reaches another, or rows are computed with the wrong one."""

from seeded import Mutant

ENGINE = "tests/unit/engine/test_adapters.py::"
SHARED = "tests/unit/operator/test_shared_gateway.py::"
PODS = "tests/unit/operator/test_adapters_of_pods.py::"
ROLLOUT = "tests/unit/operator/test_adapter_rollout.py::"
FILES = "tests/unit/model/test_adapter_files.py::"
ROWS = f"{ENGINE}test_each_row_of_a_batch_is_computed_with_its_own_adapter_or_none"
KIMI = (
    "tests/gates/test_adapters.py::"
    "test_sixteen_adapters_in_one_batch_equal_their_merged_weights[kimi-linear-ExtraBuffer-overlap-16-48]"
)

MUTANTS = (
    Mutant(
        name="the salt of a prefix does not name the adapter",
        keeps="States and pages are never shared across adapters.",
        where="mamba_prefix.adapter_salt:adapted_salt",
        old="f'lora:{fingerprint}:{salt}' if fingerprint else salt",
        new="salt",
        tests=(
            f"{ENGINE}test_no_state_and_no_page_of_one_adapter_is_used_for_another_or_for_the_base",
            f"{ENGINE}test_published_hashes_and_exported_states_name_the_adapter",
        ),
    ),
    Mutant(
        name="a decoding row gets the changes of all adapters of its step",
        keeps="Each row is computed with its own adapter.",
        where="adapters.adapted_product:AdaptedProduct._change_rows",
        old="inner.masked_fill(~own[:, :, None, None], 0)",
        new="inner",
        tests=(ROWS,),
    ),
    Mutant(
        name="the C++ decoder is not told of adapters",
        keeps="Each row is computed with its own adapter, in steps that only decode as well.",
        where="execution.runner:ModelRunner._run",
        old="adapters.decode_places",
        new="None",
        tests=(ROWS,),
    ),
    Mutant(
        name="the C++ kernels compute every adapter with the same rank",
        keeps="An adapter is computed with its whole rank.",
        where="adapters.adapted_product:AdaptedProduct.install",
        old="max(ranks, default=0)",
        new="min(ranks, default=0) and 4",
        tests=(f"{ENGINE}test_an_adapter_of_a_higher_rank_takes_the_place_of_another",),
    ),
    Mutant(
        name="a row keeps the adapter of the sequence that had it before",
        keeps="A sequence that begins in a row brings its adapter along.",
        where="execution.runner:ModelRunner._places_of",
        old="bank.place_of(piece.sequence.adapter)",
        new="max(self._places[piece.sequence.row], bank.place_of(piece.sequence.adapter))",
        tests=(f"{ENGINE}test_no_state_and_no_page_of_one_adapter_is_used_for_another_or_for_the_base",),
    ),
    Mutant(
        name="an adapter is unloaded under the sequences that use it",
        keeps="Running requests end with the adapter that they began with.",
        where="engine.adapter_calls:AdapterCalls._unload",
        old="self._core.sequences_with(fingerprint)",
        new="0",
        tests=(f"{ENGINE}test_an_adapter_comes_and_goes_while_the_engine_serves",),
    ),
    Mutant(
        name="rank-stabilised adapters have the usual scale",
        keeps="The scale of an adapter is PEFT's.",
        where="adapters.adapter_config:AdapterConfig.scale_of",
        old="math.sqrt(rank) if self.rslora else rank",
        new="rank",
        tests=(f"{FILES}test_the_scale_is_that_of_ranks_and_alphas_of_the_module",),
    ),
    Mutant(
        name="engines load the newest files of an adapter instead of those that were downloaded",
        keeps="All engines of a revision serve the same adapters.",
        where="mamba_operator.render.engine_pod:_pinned_adapters",
        old="pins.get(one.name, one.uri)",
        new="one.uri",
        tests=(f"{PODS}test_engines_load_the_adapters_that_the_job_downloaded_and_gateways_wait_for_them",),
    ),
    Mutant(
        name="a download is identified without its adapters",
        keeps="An adapter that is added is downloaded before engines load it.",
        where="mamba_operator.model.model_load:load_id",
        old="[deployment.spec.model.uri, metadata(claim).get('uid'), restart, *adapters]",
        new="[deployment.spec.model.uri, metadata(claim).get('uid'), restart]",
        tests=(
            f"{PODS}test_a_rename_downloads_nothing_again_and_a_model_without_adapters_is_loaded_as_before",
        ),
    ),
    Mutant(
        name="copies of adapters that running engines were given are removed",
        keeps="A copy that an engine reads when it starts again stays on the volume.",
        where="mamba_operator.model.model_cache:commits_in_use",
        old="commits | _adapters_in_use(context, snapshot)",
        new="commits",
        tests=(
            f"{PODS}test_copies_stay_that_engines_read_by_their_settings",
            f"{PODS}test_no_copy_of_an_adapter_that_engines_read_makes_room_for_another",
        ),
    ),
    Mutant(
        name="new engines start with adapters that every running engine has refused",
        keeps="An adapter that cannot be loaded keeps no engine from starting again.",
        where="mamba_operator.rollout.adapter_rollout:adapter_rollout",
        old="0 < len(pending) == len(running)",
        new="False",
        tests=(
            f"{ROLLOUT}test_an_adapter_that_cannot_be_loaded_is_named_with_its_engine_and_nothing_is_lost",
        ),
    ),
    Mutant(
        name="a refused adapter unloads the former ones",
        keeps="Requests of the former list go on while the new one cannot be served.",
        where="mamba_operator.children.adapter_updates:give_adapters",
        old="status == NO_PLACE and bool(surplus)",
        new="bool(surplus)",
        tests=(
            f"{ROLLOUT}test_an_adapter_that_cannot_be_loaded_is_named_with_its_engine_and_nothing_is_lost",
        ),
    ),
    Mutant(
        name="a change of adapters replaces engines",
        keeps="Running engines take over other adapters.",
        where="mamba_operator.render.live_settings:restart_settings",
        old="name not in LIVE and name != ADAPTERS",
        new="name not in LIVE",
        tests=(f"{ROLLOUT}test_a_change_of_adapters_reaches_each_engine_and_replaces_no_pod",),
    ),
    Mutant(
        name="a step that only decodes forgets the adapters of experts",
        keeps="Each row is computed with its own adapter, experts included.",
        where="execution.runner:ModelRunner._whole_decoder",
        old="bank.changes_experts",
        new="False",
        tests=(
            "tests/gates/test_adapters_of_experts.py::test_adapters_of_experts_equal_their_merged_weights[qwen3-next-auto]",
        ),
    ),
    Mutant(
        name="the right to an adapter opens its model",
        keeps="A right to an adapter is one to that adapter alone.",
        where="mamba_gateway.models.model_table:ModelTable.may_use",
        old="entry.name in rights",
        new="any(name in rights for name in (entry.name, *self.adapters_of(entry)))",
        tests=(f"{SHARED}test_adapters_have_names_aliases_and_rights_at_one_address",),
    ),
    Mutant(
        name="heads take the changes of a place that another row has",
        keeps="Each row is computed with its own adapter, also where heads share one latent.",
        where="adapters.adapted_heads:AdaptedHeads.__call__",
        old="self._change(x[some], rows.places[start:start + DECODES_AT_ONCE])",
        new="self._change(x[some], int(rows.places[0]))",
        tests=(KIMI,),
    ),
    Mutant(
        name="one use of a shared block changes and the other does not",
        keeps="An adapter that says nothing of a use of shared weights is refused.",
        where="adapters.adapter_bank:AdapterBank._check_uses",
        old="each in self._products and each not in changes",
        new="False",
        tests=(f"{ENGINE}test_an_adapter_of_a_block_that_layers_share_names_each_use_of_it",),
    ),
)
