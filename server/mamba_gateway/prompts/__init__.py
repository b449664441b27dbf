"""Reading a request's prompt as an engine will: chat template and tokenizer, from the model's own files."""
