"""HTTP side of a replica: the OpenAI routes, control routes, streaming, errors to statuses."""
