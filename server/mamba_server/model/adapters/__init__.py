"""LoRA adapters beside one base model: their files, their memory, and their products in a step."""
