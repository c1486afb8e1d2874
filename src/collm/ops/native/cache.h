// How keys and values lie in a cache, and how they get there.
//
// Runs of 16 slots, [slots / 16, kv_heads, 2, 16 * head_dim]: of each key head first its keys, pairs of
// elements of 16 slots, [head_dim / 2, 16, 2], then its values, elements of pairs of slots,
// [8, head_dim, 2]. Both are packed as a product reads them: the queries' with keys, the weights' with
// values. A sum then has a lane for each key, and memory comes in order, 4 KiB at 64 elements a head.

#pragma once

#include "common.h"

namespace {

constexpr int64_t kRun = kLanes;  // Slots of a run; a block has a whole number of them.

// Elements of a run's keys, or of its values.
inline int64_t run_size(int64_t head_dim) { return kRun * head_dim; }

// Where a run's values begin.
inline const bf16* values_of(const bf16* run, int64_t head_dim) { return run + run_size(head_dim); }

// Where the run of a slot begins that has the keys of a head.
template <typename T>
T* run_of(T* cache, int64_t slot, int64_t kv_heads, int64_t kv_head, int64_t head_dim) {
  return cache + (slot / kRun * kv_heads + kv_head) * 2 * run_size(head_dim);
}

// Packs rows as weights that map another row to its products with them: [dim / 2, COLUMNS, 2]. Rows
// that are not there (null) are zero.
template <int COLUMNS>
KERNEL void pack_across(const bf16* const* rows, int64_t dim, bf16* to) {
  auto* pairs = (uint32_t*)to;
  for (int64_t column = 0; column < COLUMNS; ++column) {
    const auto* row = (const uint32_t*)rows[column];
    for (int64_t d = 0; d < dim / 2; ++d) pairs[d * COLUMNS + column] = row ? row[d] : 0;
  }
}

// Packs rows as weights that map as many numbers to a sum of the rows: [COLUMNS / 2, dim, 2].
template <int COLUMNS>
KERNEL void pack_along(const bf16* const* rows, int64_t dim, bf16* to) {
  for (int64_t column = 0; column < COLUMNS; ++column) {
    const bf16* row = rows[column];
    bf16* at = to + (column / 2) * dim * 2 + column % 2;
    for (int64_t d = 0; d < dim; ++d) at[d * 2] = row ? row[d] : (bf16)0;
  }
}

// Writes a key to a slot of a run, infinities and NaN as zero.
KERNEL void place_key(const bf16* key, int64_t dim, int64_t slot, bf16* run) {
  auto* pairs = (uint32_t*)run + slot % kRun;
  for (int64_t d = 0; d < dim; d += kColumns) {
    alignas(64) uint32_t words[kLanes];
    store_words(words, finite_or_zero(load_words(key + d)));
    for (int64_t i = 0; i < kLanes; ++i) pairs[(d / 2 + i) * kRun] = words[i];
  }
}

// Likewise a value.
KERNEL void place_value(const bf16* value, int64_t dim, int64_t slot, bf16* run) {
  bf16* to = run + run_size(dim) + slot % kRun / 2 * dim * 2 + slot % 2;
  for (int64_t d = 0; d < dim; d += kColumns) {
    alignas(64) bf16 elements[kColumns];
    store_words(elements, finite_or_zero(load_words(value + d)));
    for (int64_t i = 0; i < kColumns; ++i) to[(d + i) * 2] = elements[i];
  }
}

}  // namespace

extern "C" {

// Writes kv [rows, 2, kv_heads, head_dim] to slots of a cache, slots [rows]; head_dim is a multiple of 32.
void EXPORT(write_kv)(const bf16* kv, bf16* cache, const int64_t* slots, int64_t rows, int64_t kv_heads,
                      int64_t head_dim, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * kv_heads * head_dim > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < kv_heads; ++head) {
      bf16* run = run_of(cache, slots[row], kv_heads, head, head_dim);
      const bf16* key = kv + (row * 2 * kv_heads + head) * head_dim;
      place_key(key, head_dim, slots[row], run);
      place_value(key + kv_heads * head_dim, head_dim, slots[row], run);
    }
}

}  // extern "C"
