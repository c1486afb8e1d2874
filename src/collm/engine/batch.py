"""From a step plan to the tensors that the decoder computes it with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from collm.engine.plan import ScheduledSequence
from collm.model.decoder import StepBatch
from collm.ops.attention import AttentionPlan, PrefillSpan, can_attend_natively
from collm.ops.lora import AdapterRows, Segment
from collm.types import BASE_SLOT


class BatchBuilder:
    """Lays out the rows of a step: decodes, then prefill chunks, each sorted by adapter slot."""

    def __init__(self, cache: Tensor, windows: Sequence[int | None]) -> None:
        """Build for a model whose layers use the sliding ``windows`` and keep keys as ``cache``."""
        self._block_size = cache.shape[1]
        self._windows = set(windows)
        self._dtype = cache.dtype
        self._device = cache.device
        self._needs_masks = not can_attend_natively(cache)

    def build(self, items: Sequence[ScheduledSequence]) -> StepBatch:
        """Return the batch of ``items``, which must be in row order (``row_order``)."""
        token_ids: list[int] = []
        positions: list[int] = []
        cache_rows: list[int] = []
        sample_rows: list[int] = []
        for item in items:
            first, last = item.first_position, item.first_position + item.num_new_tokens
            token_ids += item.sequence.token_ids[first:last]
            positions += range(first, last)
            cache_rows += self._cache_rows(item.sequence.block_table, first, last)
            if item.samples:
                sample_rows.append(len(token_ids) - 1)
        rows = self._indices(cache_rows)
        return StepBatch(
            token_ids=self._indices(token_ids),
            positions=self._indices(positions),
            attention={window: self._attention(items, rows, window) for window in self._windows},
            adapters=self._adapter_rows(items),
            sample_rows=self._indices(sample_rows),
        )

    def _indices(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _cache_rows(self, table: list[int], first: int, last: int) -> list[int]:
        size = self._block_size
        return [table[p // size] * size + p % size for p in range(first, last)]

    def _attention(
        self, items: Sequence[ScheduledSequence], cache_rows: Tensor, window: int | None
    ) -> AttentionPlan:
        decodes = [item for item in items if item.num_new_tokens == 1]
        lengths = [item.first_position + 1 for item in decodes]
        spans, row = [], len(decodes)
        for item in items[len(decodes) :]:
            spans.append(self._span(item, row, window))
            row += item.num_new_tokens
        return AttentionPlan(
            cache_rows=cache_rows,
            num_decode=len(decodes),
            decode_blocks=self._decode_blocks(decodes, self._num_blocks(lengths)),
            decode_lengths=self._indices(lengths),
            decode_mask=self._decode_mask(lengths, window) if self._needs_masks else None,
            window=window,
            spans=tuple(spans),
        )

    def _decode_blocks(self, decodes: Sequence[ScheduledSequence], num_blocks: int) -> Tensor:
        tables = [item.sequence.block_table[:num_blocks] for item in decodes]
        return self._indices([table + [0] * (num_blocks - len(table)) for table in tables])

    def _decode_mask(self, lengths: Sequence[int], window: int | None) -> Tensor:
        queries = self._indices([length - 1 for length in lengths]).unsqueeze(1)
        num_keys = self._num_blocks(lengths) * self._block_size
        return _additive_mask(queries, num_keys, window, self._dtype)[:, None, None, :]

    def _num_blocks(self, lengths: Sequence[int]) -> int:
        """Return the blocks of the longest decoding sequence."""
        return -(-max(lengths, default=0) // self._block_size)

    def _span(self, item: ScheduledSequence, row: int, window: int | None) -> PrefillSpan:
        context, new = item.first_position, item.num_new_tokens
        mask = None
        if self._needs_masks and (context or (window is not None and window < new)):
            queries = self._indices(range(context, context + new)).unsqueeze(1)
            mask = _additive_mask(queries, context + new, window, self._dtype)
        num_blocks = -(-(context + new) // self._block_size)
        blocks = self._indices(item.sequence.block_table[:num_blocks])
        return PrefillSpan(row, row + new, blocks, context, mask)

    def _adapter_rows(self, items: Sequence[ScheduledSequence]) -> AdapterRows:
        """Return which rows use which adapter."""
        segments: list[Segment] = []
        slots: list[int] = []
        row = 0
        for item in items:
            assert item.sequence.binding is not None
            slot, end = item.sequence.binding.slot, row + item.num_new_tokens
            if segments and segments[-1][1:] == (row, slot):
                segments[-1] = (segments[-1][0], end, slot)
            elif slot != BASE_SLOT:
                segments.append((row, end, slot))
            slots += [slot] * item.num_new_tokens
            row = end
        return AdapterRows(segments, torch.tensor(slots, dtype=torch.int32, device=self._device))


def row_order(item: ScheduledSequence) -> tuple[bool, int]:
    """Sort key of a step's rows: decodes first, then by adapter slot."""
    assert item.sequence.binding is not None
    return item.num_new_tokens > 1, item.sequence.binding.slot


def _additive_mask(
    queries: Tensor, num_keys: int, window: int | None, dtype: torch.dtype
) -> Tensor:
    """Return 0 where the query at position [num_queries, 1] sees the key, else minus infinity."""
    keys = torch.arange(num_keys, device=queries.device)
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return queries.new_zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)
