"""Several samples packed into one forward and backward, without padding or cross-attention."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from collm.gate.config import GENERAL
from collm.ops.native.library import can_attend
from collm.pacing.quanta import cut
from collm.training.attention import PackedAttention, attention_to_earlier, pack_attention
from collm.training.native_attention import NativeAttention, span_attention
from collm.training.samples import TokenSample

_MIN_PREFIX = 8
"""Shortest common beginning worth computing once."""
_ROW_MULTIPLE = 32
"""Large batches are padded to this: the matrix library keeps memory for every number of rows."""
_MIN_PIECE = 128
"""Fewest rows that a sample is cut into, if it is long enough: fewer make slow products."""
_KEYS_OF_A_ROW = 2048
"""Keys that cost a row as much time as its own products do; more on larger models."""
_PADDED_FROM = 256
"""Rows from which a batch is padded; of a smaller one the padding would be too large a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed samples. A beginning that they share (a system prompt) is computed once.

    The samples' gradients through the shared rows add up there, so the result equals that of
    computing every sample on its own.
    """

    sample_ids: tuple[str, ...]

    token_ids: Tensor
    """[num_tokens]"""
    positions: Tensor
    """Position of each row in its own sample [num_tokens]."""
    loss_rows: Tensor
    """Rows [num_supervised] whose next token is supervised."""
    targets: Tensor
    """That next token [num_supervised]."""
    sample_of_target: Tensor
    """Index of the sample that each target belongs to [num_supervised]."""
    weights: Tensor
    """What each sample's loss is multiplied by in training [num_samples], float32."""
    supervised_weight: float
    """What a step over these samples is divided by: supervised tokens times their weights."""
    num_prefix: int
    without_prefix: frozenset[int]
    """Indices of samples that do not begin with the prefix."""
    lengths: tuple[int, ...]
    """Rows of each sample after the prefix; what follows the last supervised token needs none."""
    num_sample_tokens: int
    """Tokens of all samples, whole and counted for each."""

    @property
    def num_tokens(self) -> int:
        """Rows computed, padding at the end included."""
        return self.token_ids.shape[0]

    @property
    def num_supervised(self) -> int:
        """Positions that the loss counts."""
        return self.targets.shape[0]

    def pieces(self, max_rows: int | None) -> tuple[range, ...]:
        """Return the rows that half a layer takes at a time: all, unless one sample is too long.

        Args:
            max_rows: Most rows wanted; a longer sample that is alone here is cut.
        """
        num_rows = self.num_tokens
        if max_rows is None or num_rows <= max_rows or len(self.lengths) > 1:
            return (range(num_rows),)
        # Rows that attend to many keys take longer.
        max_piece = max(_MIN_PIECE, int(max_rows / (1 + num_rows / _KEYS_OF_A_ROW)))
        unit = 1 if num_rows % _ROW_MULTIPLE else _ROW_MULTIPLE
        sizes = cut(num_rows // unit, max_piece // unit)
        ends = list(accumulate(unit * size for size in sizes))
        return tuple(map(range, [0, *ends], ends))

    def to(self, device: torch.device) -> "MicroBatch":
        """Return the batch with its tensors on ``device``."""
        names = (
            "token_ids", "positions", "loss_rows", "targets", "sample_of_target", "weights",
        )  # fmt: skip
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def attention(
        self, window: int | None, dtype: torch.dtype, head_dim: int, rows: range | None = None
    ) -> PackedAttention | NativeAttention:
        """Return which rows attend to which in layers with this sliding window.

        Args:
            window: The layers' sliding window.
            dtype: Compute dtype.
            head_dim: Features of a head.
            rows: One of several ``pieces``: its queries, and the keys of all rows up to its end.
        """
        device = self.token_ids.device
        is_native = device.type == "cpu" and can_attend(dtype, head_dim)
        if rows is not None and len(rows) < self.num_tokens:
            if is_native:  # to the kernels, earlier rows are a prefix
                return span_attention(rows.start, [len(rows)], window, without_prefix=frozenset())
            return attention_to_earlier(rows, window, dtype, device)
        if is_native:
            return span_attention(
                self.num_prefix, self.lengths, window, without_prefix=self.without_prefix
            )
        return pack_attention(
            self.num_prefix,
            self.lengths,
            self.num_tokens,
            window,
            dtype,
            device,
            without_prefix=self.without_prefix,
        )


def pack(samples: Sequence[TokenSample]) -> MicroBatch:
    """Pack samples, in order, into one micro-batch.

    General text that begins otherwise than the adapter's own samples does not keep these from
    sharing their beginning.
    """
    prefix = _own_prefix(samples)
    num_shared = len(prefix)
    token_ids, positions = list(prefix), list(range(num_shared))
    loss_rows: list[int] = []
    targets: list[int] = []
    sample_of_target: list[int] = []
    lengths: list[int] = []
    without_prefix: set[int] = set()
    for index, sample in enumerate(samples):
        num_prefix = num_shared if _begins_with(sample, prefix) else 0
        if num_prefix < num_shared:
            without_prefix.add(index)
        offset = len(token_ids) - num_prefix
        supervised = [p for p, flag in enumerate(sample.is_supervised) if flag]
        loss_rows += [offset + p - 1 for p in supervised]
        targets += [sample.token_ids[p] for p in supervised]
        sample_of_target += [index] * len(supervised)
        token_ids += sample.token_ids[num_prefix : sample.num_rows]
        positions += range(num_prefix, sample.num_rows)
        lengths.append(sample.num_rows - num_prefix)
    num_padding = -len(token_ids) % _ROW_MULTIPLE if len(token_ids) >= _PADDED_FROM else 0
    token_ids += [0] * num_padding
    positions += [0] * num_padding
    return MicroBatch(
        sample_ids=tuple(sample.sample_id for sample in samples),
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        loss_rows=torch.tensor(loss_rows),
        targets=torch.tensor(targets),
        sample_of_target=torch.tensor(sample_of_target),
        weights=torch.tensor([sample.weight for sample in samples]),
        supervised_weight=sum(samples[index].weight for index in sample_of_target),
        num_prefix=num_shared,
        without_prefix=frozenset(without_prefix),
        lengths=tuple(lengths),
        num_sample_tokens=sum(len(sample.token_ids) for sample in samples),
    )


def num_packed_rows(samples: Sequence[TokenSample]) -> int:
    """Return the rows that ``pack`` would make of these samples, padding not counted."""
    prefix = _own_prefix(samples)
    num_shared = len(prefix)
    num_saved = sum(num_shared for sample in samples if _begins_with(sample, prefix))
    return num_shared + sum(sample.num_rows for sample in samples) - num_saved


def _own_prefix(samples: Sequence[TokenSample]) -> tuple[int, ...]:
    """Return the tokens that the adapter's own among these samples begin with."""
    own = [sample for sample in samples if sample.slice != GENERAL]
    return own[0].token_ids[: shared_prefix(own)] if own else ()


def _begins_with(sample: TokenSample, prefix: tuple[int, ...]) -> bool:
    """Return whether a sample begins with ``prefix`` and learns none of it."""
    num_prefix = len(prefix)
    return sample.first_loss_row >= num_prefix and sample.token_ids[:num_prefix] == prefix


def shared_prefix(samples: Sequence[TokenSample]) -> int:
    """Return how many leading tokens all samples share and none supervises; 0 if hardly any."""
    if len(samples) < 2:
        return 0
    low, high = min(s.token_ids for s in samples), max(s.token_ids for s in samples)
    limit = min(sample.first_loss_row for sample in samples)
    length = 0
    # What the smallest and the largest share in lexical order, all share.
    while length < min(limit, len(low), len(high)) and low[length] == high[length]:
        length += 1
    return length if length >= _MIN_PREFIX else 0
