"""The one thing that every kind of job does: samples into gradients, gradients into steps."""

import math
from collections.abc import Generator, Mapping

from torch import Tensor

from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import CUT_EVERY, Quantum, QuantumKind
from collm.training.config import JobConfig
from collm.training.corpus import Corpus
from collm.training.events import TrainReport
from collm.training.gradient_spread import GradientSpread
from collm.training.measuring import Limits
from collm.training.microbatch import MicroBatch
from collm.training.passes import Activations, Pass
from collm.training.state import TrainingState
from collm.training.stream import Cursor, SampleStream


class Learning:
    """An adapter's shadow, its optimizer, and its place in its data.

    Args:
        config: What to learn and how.
        decoder: The frozen weights.
        start: The state to train from.
        corpus: What to learn from.
        limits: Bounds micro-batches and quanta.
        activations: Whether to keep or recompute them.
        num_epochs: Passes over the corpus; ``None`` never ends.
    """

    def __init__(
        self,
        config: JobConfig,
        decoder: Decoder,
        start: AdapterState,
        corpus: Corpus,
        limits: Limits,
        activations: Activations,
        *,
        num_epochs: int | None,
    ) -> None:
        table = decoder.weights.embedding
        self.state = TrainingState(config, start, table.dtype, table.device)
        self.stream = SampleStream(
            corpus, config.seed, replay_share=config.replay_share, num_epochs=num_epochs
        )
        self._config = config
        self._decoder = decoder
        self._limits = limits
        self._activations = activations
        self._learned: list[MicroBatch] = []
        self._spread = GradientSpread()
        self._loss_sum = 0.0
        self.tokens_per_step = config.tokens_per_step
        """Sample tokens accumulated before each optimizer step; changes between micro-batches."""

    def size_steps(self, tokens: int | None) -> None:
        """Accumulate this many sample tokens a step from now on; ``None``: as configured."""
        self.tokens_per_step = tokens or self._config.tokens_per_step

    @property
    def has_gradient(self) -> bool:
        """Whether something was learned since the last step."""
        return bool(self._learned)

    @property
    def num_pending_tokens(self) -> int:
        """Sample tokens that were learned since the last step."""
        return sum(batch.num_sample_tokens for batch in self._learned)

    @property
    def is_step_due(self) -> bool:
        """Whether enough was learned for a step, or nothing follows."""
        is_last = self.has_gradient and not self.stream.has_next
        return is_last or self.num_pending_tokens >= self.tokens_per_step

    def learn(self, max_tokens: int | None = None) -> Generator[Quantum, None, int]:
        """Run one micro-batch forward and backward into the gradient; return its rows.

        Args:
            max_tokens: Most sample tokens of it, besides what the limits allow.
        """
        bound = self._most_tokens()
        batch = self.stream.next(bound if max_tokens is None else min(bound, max_tokens))
        max_loss_rows = self._limits.max_loss_rows(QuantumKind.LOSS)
        max_rows = self._limits.max_rows()
        run = Pass(self._decoder, batch, self._config.adapter, max_loss_rows, max_rows)
        shadow = self.state.shadow
        shadow.added_square.zero_()
        yield from run.learn(shadow, self._activations)
        self._learned.append(batch)
        self._spread.add(float(shadow.added_square), batch.supervised_weight)
        self._loss_sum += float(run.loss.total @ batch.weights)
        return batch.num_tokens

    def step(self) -> Generator[Quantum, None, TrainReport]:
        """Apply the accumulated gradient, normalized by supervised tokens times their weights."""
        divisor = sum(batch.supervised_weight for batch in self._learned)
        num_tokens = self.num_pending_tokens
        norm = yield from self.state.step(divisor)
        report = TrainReport(
            adapter=self._config.adapter,
            step=self.state.num_steps,
            num_tokens=num_tokens,
            num_samples=sum(len(batch.lengths) for batch in self._learned),
            loss=self._loss_sum / divisor,
            grad_norm=norm,
            was_skipped=not math.isfinite(norm),
            gradient=self._spread.sums(norm, num_tokens),
        )
        self._clear_gradient()
        self.stream.commit()
        return report

    def drop_gradient(self) -> None:
        """Forget the micro-batches since the last step, a half-finished one included.

        Their samples come again.
        """
        self._clear_gradient()
        self.stream.rewind()

    def copy(self) -> Generator[Quantum, None, tuple[dict[str, Tensor], dict[str, str]]]:
        """Copy the state as of the last step, and where its data goes on from there."""
        tensors, meta = yield from self.state.copy()
        return tensors, meta | self.stream.committed.to_meta()

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Take over what ``copy`` returned.

        Raises:
            ConfigError: It was copied with another rank or alpha.
        """
        self.state.restore(tensors, meta)
        self._clear_gradient()
        self.stream.seek(Cursor.from_meta(meta))

    def restore_place(self, meta: Mapping[str, str]) -> None:
        """Take over how far something was that ``copy`` returned, but not what it had learned."""
        self.state.num_steps = int(meta["num_steps"])
        self.stream.seek(Cursor.from_meta(meta))

    def _most_tokens(self) -> int:
        """Return the most sample tokens of the next micro-batch."""
        bound = self._limits.max_tokens()
        is_cut = self.state.num_steps % CUT_EVERY == 0 and bound >= self.tokens_per_step
        if not is_cut:
            return bound
        pending = self.num_pending_tokens
        return max(1, bound - pending) if pending else (self.tokens_per_step + 1) // 2

    def _clear_gradient(self) -> None:
        self.state.shadow.gradient.zero_()
        self._learned.clear()
        self._spread.clear()
        self._loss_sum = 0.0
