"""Text in and out of token ids: tokenizer, chat template, incremental detokenizer, stop strings."""
