"""Arguments of `vllm serve`, and what becomes of each."""

from collections.abc import Mapping

from mamba_cli.migration.migrated import (
    Take,
    dtype,
    field_of,
    first_name,
    kv_cache_dtype,
    model_of,
    one_gpu,
    replicas,
    revision,
    share,
    state_dtype,
    switch,
    tokens,
    whole_number,
    without,
)

ALWAYS = without("always so")
BY_TEMPLATE = without("the chat template of the model decides; nothing has to be set")
ADDRESS = without("the Service of the object is the address, port 80; spec.gateway names the rest")
KEYS = without("put the keys into a Secret and name it in spec.gateway.auth")
CHECKPOINTS = without("stateCache.trackInterval and maxCheckpointsPerPath choose where states are kept")
CONFIG_FILE = without("a file of arguments is not read: write its arguments into the command")
LOGS = without("logs are JSON lines; engine.extraArgs takes --log-level")
NO_SPECULATION = without("choose spec.engine.speculation of this version, if there is one for the model")
QUANTIZED = without("checkpoints are read as their own configuration says; see docs/reference/models.md")

VLLM: Mapping[str, Take] = {
    "--api-key": KEYS,
    "--async-scheduling": ALWAYS,
    "--block-size": CHECKPOINTS,
    "--chat-template": without("put the template into the model directory as chat_template.jinja"),
    "--config": CONFIG_FILE,
    "--cpu-offload-gb": without("weights stay on the device; spec.stateCache.hostMemory is for states"),
    "--data-parallel-size": replicas,
    "-dp": replicas,
    "--disable-log-requests": LOGS,
    "--disable-log-stats": LOGS,
    "--download-dir": without("spec.model.cache keeps downloads"),
    "--dtype": field_of("engine.dtype", dtype),
    "--enable-auto-tool-choice": BY_TEMPLATE,
    "--enable-chunked-prefill": ALWAYS,
    "--enable-expert-parallel": without("all experts are on one GPU"),
    "--enable-log-requests": LOGS,
    "--enable-lora": without("list the adapters in spec.model.adapters, each with name and uri"),
    "--enable-prefix-caching": switch("stateCache.prefixCaching", True),
    "--enforce-eager": switch("engine.decodeGraphs", "Off"),
    "--generation-config": without("the model's own generation_config.json gives the defaults"),
    "--gpu-memory-utilization": field_of("memory.utilization", share),
    "--hf-token": without("put the token into a Secret and name it in spec.model.tokenSecretRef"),
    "--host": ADDRESS,
    "--kv-cache-dtype": field_of("engine.kvCacheDtype", kv_cache_dtype),
    "--kv-transfer-config": without("two pools hand over states by themselves: see spec.disaggregation"),
    "--limit-mm-per-prompt": without("the text model of a multimodal checkpoint is served alone"),
    "--load-format": without("weights are read from safetensors"),
    "--lora-modules": without("list the adapters in spec.model.adapters, each with name and uri"),
    "--mamba-block-size": CHECKPOINTS,
    "--mamba-cache-dtype": without("the windows of convolutions have the type of spec.engine.dtype"),
    "--mamba-cache-mode": CHECKPOINTS,
    "--mamba-ssm-cache-dtype": field_of("stateCache.stateDtype", state_dtype),
    "--max-model-len": field_of("model.maxModelLen", tokens),
    "--max-num-batched-tokens": field_of("engine.chunkedPrefillTokens", tokens),
    "--max-num-seqs": field_of("engine.maxRunningRequests", whole_number),
    "--model": model_of,
    "--no-enable-chunked-prefill": without("long prompts are always computed in pieces"),
    "--no-enable-prefix-caching": switch("stateCache.prefixCaching", False),
    "--pipeline-parallel-size": one_gpu,
    "-pp": one_gpu,
    "--port": ADDRESS,
    "--quantization": QUANTIZED,
    "-q": QUANTIZED,
    "--reasoning-parser": BY_TEMPLATE,
    "--revision": revision,
    "--root-path": ADDRESS,
    "--seed": without("each request may give its seed"),
    "--served-model-name": first_name,
    "--speculative-config": NO_SPECULATION,
    "--swap-space": without("states that the arena has no room for go to spec.stateCache.hostMemory"),
    "--tensor-parallel-size": one_gpu,
    "-tp": one_gpu,
    "--tokenizer": without("the tokenizer of the model directory is used"),
    "--tool-call-parser": BY_TEMPLATE,
    "--trust-remote-code": without("code of a model is never run"),
    "--uvicorn-log-level": LOGS,
}
