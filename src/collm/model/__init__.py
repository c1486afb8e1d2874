"""The base model: architecture description, checkpoint loading, tokenizer, forward pass."""
