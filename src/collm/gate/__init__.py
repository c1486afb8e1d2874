"""Is a candidate better than what is served? Plain decisions on paired losses, no tensors."""
