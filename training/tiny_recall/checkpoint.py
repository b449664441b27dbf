"""Writes a trained model as a folder in the Nemotron-H format, and reads one back into the training model.

The configuration carries the field names of today's transformers and those of the published checkpoints.
Called by `train` and `evaluate`.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from training.tiny_recall import tokenizer
from training.tiny_recall.model import Shape, TinyHybrid
from training.tiny_recall.vocabulary import END, PAD, SPECIAL_TOKENS

MAX_POSITION = 4096
HEAD = "mtp."
"""Prefix of the tensors of a head for drafts, which a folder may have as well."""
BLOCKS = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
PAD_ID, END_ID = SPECIAL_TOKENS.index(PAD), SPECIAL_TOKENS.index(END)


def configuration(shape: Shape) -> dict[str, Any]:
    """Return the content of config.json."""
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "dtype": "float32",
        "torch_dtype": "float32",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "hybrid_override_pattern": shape.pattern,
        "layers_block_type": [BLOCKS[kind] for kind in shape.pattern],
        "num_hidden_layers": len(shape.pattern),
        "num_nextn_predict_layers": 1,
        "num_attention_heads": shape.attention_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.attention_dim,
        "attention_head_dim": shape.attention_dim,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "intermediate_size": shape.mlp,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "mamba_num_heads": shape.heads,
        "mamba_head_dim": shape.head_dim,
        "mamba_hidden_act": "silu",
        "mamba_proj_bias": False,
        "ssm_state_size": shape.state,
        "n_groups": 1,
        "conv_kernel": shape.kernel,
        "use_conv_bias": True,
        "use_bias": False,
        "chunk_size": 64,
        "time_step_min": 1e-9,  # dt was trained unclamped; some implementations clamp it to this
        "time_step_max": 0.1,
        "time_step_floor": 1e-4,
        "layer_norm_epsilon": shape.eps,
        "norm_eps": shape.eps,
        "residual_in_fp32": False,
        "rescale_prenorm_residual": True,
        "hidden_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "max_position_embeddings": MAX_POSITION,
        "num_logits_to_keep": 1,
        "use_cache": True,
        "pad_token_id": PAD_ID,
        "bos_token_id": None,
        "eos_token_id": END_ID,
    }


def write(model: TinyHybrid, folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it readable by its owner alone
    generation = {"do_sample": False, "eos_token_id": END_ID, "pad_token_id": PAD_ID}
    for name, content in (("config", configuration(model.shape)), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    tokenizer.write(folder, MAX_POSITION)


def read(folder: Path, shape: Shape) -> TinyHybrid:
    """Return the training model with the folder's weights. Raises RuntimeError when the shapes differ."""
    model = TinyHybrid(shape)
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith(HEAD)})
    return model.eval()
