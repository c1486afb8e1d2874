"""How many operations a model's work takes at least: a multiplication and an addition count as two.

Products of weights, adapters and attention are counted, as the formulas of the model say; norms,
activations and sampling are not, nor is anything computed twice.
"""

from collm.model.spec import ModelSpec


class Operations:
    """Counts for one model."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        width, inner = spec.num_heads * spec.head_dim, spec.intermediate_size
        keys = 2 * spec.num_kv_heads * spec.head_dim
        hidden = spec.hidden_size
        self._linears = ((hidden, width), (hidden, keys), (width, hidden), *[(hidden, inner)] * 3)

    def linears(self, num_tokens: int, num_samples: int) -> int:
        """All layers for ``num_tokens`` rows, the vocabulary projection for ``num_samples``."""
        spec = self._spec
        weights = spec.num_layers * sum(a * b for a, b in self._linears)
        return 2 * (weights * num_tokens + spec.vocab_size * spec.hidden_size * num_samples)

    def prefill(self, n: int, length: int) -> int:
        """``n`` prompts of ``length`` tokens, each until its first output token."""
        return self.linears(n * length, n) + n * self._causal_attention(length)

    def training(self, n: int, length: int, rank: int) -> int:
        """One step over ``n`` samples of ``length`` tokens, all but the first supervised.

        Frozen linears take a product forward and one back; adapters one more, for their own
        gradients; attention four back for its two forward.
        """
        spec, num_tokens = self._spec, n * length
        # Query and the two others are counted apart, so factors of a fused linear too.
        sizes = sum(a + b for a, b in self._linears)
        adapters = 3 * 2 * spec.num_layers * rank * sizes * num_tokens
        frozen = 2 * self.linears(num_tokens, num_tokens - n)
        return frozen + adapters + 3 * n * self._causal_attention(length)

    def _causal_attention(self, length: int) -> int:
        """Scores and outputs of one sequence in all layers."""
        spec = self._spec
        pairs = length * (length + 1) // 2
        return 4 * spec.num_layers * spec.num_heads * spec.head_dim * pairs
