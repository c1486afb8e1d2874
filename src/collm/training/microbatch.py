"""Several samples packed into one forward and backward, without padding or cross-attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from collm.training.attention import PackedAttention, pack_attention
from collm.training.samples import TokenSample

_MIN_PREFIX = 8
"""Shortest common beginning worth computing once."""
_ROW_MULTIPLE = 32
"""Large batches are padded to this: the matrix library keeps memory for every number of rows."""
_PADDED_FROM = 256
"""Rows from which a batch is padded; of a smaller one the padding would be too large a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed samples. A beginning that all share (a system prompt) is computed once.

    The samples' gradients through the shared rows add up there, so the result equals that of
    computing every sample on its own.
    """

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
    num_prefix: int
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

    def attention(self, window: int | None, dtype: torch.dtype) -> PackedAttention:
        """Return which rows attend to which in layers with this sliding window."""
        return pack_attention(self.num_prefix, self.lengths, self.num_tokens, window, dtype)


def pack(samples: Sequence[TokenSample]) -> MicroBatch:
    """Pack samples, in order, into one micro-batch."""
    num_prefix = shared_prefix(samples)
    token_ids = list(samples[0].token_ids[:num_prefix])
    positions = list(range(num_prefix))
    loss_rows: list[int] = []
    targets: list[int] = []
    sample_of_target: list[int] = []
    for index, sample in enumerate(samples):
        offset = len(token_ids) - num_prefix
        supervised = [p for p, flag in enumerate(sample.is_supervised) if flag]
        loss_rows += [offset + p - 1 for p in supervised]
        targets += [sample.token_ids[p] for p in supervised]
        sample_of_target += [index] * len(supervised)
        token_ids += sample.token_ids[num_prefix : sample.num_rows]
        positions += range(num_prefix, sample.num_rows)
    num_padding = -len(token_ids) % _ROW_MULTIPLE if len(token_ids) >= _PADDED_FROM else 0
    token_ids += [0] * num_padding
    positions += [0] * num_padding
    return MicroBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        loss_rows=torch.tensor(loss_rows),
        targets=torch.tensor(targets),
        sample_of_target=torch.tensor(sample_of_target),
        num_prefix=num_prefix,
        lengths=tuple(sample.num_rows - num_prefix for sample in samples),
        num_sample_tokens=sum(len(sample.token_ids) for sample in samples),
    )


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
