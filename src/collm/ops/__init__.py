"""Tensor kernels, each with a plain torch reference: linears, attention, rotary embedding, LoRA, sampling."""
