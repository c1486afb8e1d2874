"""Tensor kernels, each with a plain reference: linears, attention, rotary, LoRA, sampling."""
