// Linear layers with one adapter for all rows, and their gradients, for training.

#pragma once

#include "gradient.h"

namespace {

// A [rank, in] and B^T [rank, out] of a linear layer. Outputs may be of parts fused into one, which end at
// part_ends; each part has its own share of the ranks, and B is zero elsewhere.
struct Adapter {
  const bf16 *a, *b;
  int64_t rank;
  const int64_t* part_ends;
  int64_t num_parts;

  int64_t ranks_each() const { return rank / num_parts; }
  int64_t part_begin(int64_t part) const { return part ? part_ends[part - 1] : 0; }
};

// Products of x with COUNT rows that lie `stride` apart.
template <int COUNT>
KERNEL void dots(const bf16* x, const bf16* rows, int64_t stride, int64_t size, float* to,
                 int64_t count) {
  if constexpr (COUNT > 1)
    if (count < COUNT) return dots<COUNT - 1>(x, rows, stride, size, to, count);
  Floats sums[COUNT];
  UNROLL
  for (int i = 0; i < COUNT; ++i) sums[i] = zeros();
  for (int64_t k = 0; k < size; k += kColumns) {
    const Words value = load_words(x + k);
    UNROLL
    for (int i = 0; i < COUNT; ++i) sums[i] = dot2(sums[i], value, load_words(rows + i * stride + k));
  }
  UNROLL
  for (int i = 0; i < COUNT; ++i) to[i] = total(sums[i]);
}

// to[i, 32 columns] = sum over rows of factors[row, i] values[row], for COUNT of the ranks.
template <int COUNT>
KERNEL void sum_products(const float* factors, int64_t rank, const bf16* values, int64_t width,
                         int64_t rows, float* to, int64_t count) {
  if constexpr (COUNT > 1)
    if (count < COUNT) return sum_products<COUNT - 1>(factors, rank, values, width, rows, to, count);
  Floats low[COUNT], high[COUNT];
  UNROLL
  for (int i = 0; i < COUNT; ++i) low[i] = high[i] = zeros();
  for (int64_t row = 0; row < rows; ++row, factors += rank, values += width) {
    const Floats value_low = widen(values), value_high = widen(values + kLanes);
    UNROLL
    for (int i = 0; i < COUNT; ++i) {
      const Floats factor = all(factors[i]);
      low[i] = fma(factor, value_low, low[i]), high[i] = fma(factor, value_high, high[i]);
    }
  }
  UNROLL
  for (int i = 0; i < COUNT; ++i)
    store(to + i * kColumns, low[i]), store(to + i * kColumns + kLanes, high[i]);
}

// Rounds projections to bfloat16, as they meet packed factors.
KERNEL void round_projections(const float* t, bf16* to, int64_t first, int64_t last) {
  for (; first < last && first % kLanes; ++first) to[first] = rounded(t[first]);
  for (; first + kLanes <= last; first += kLanes) narrow(to + first, load(t + first));
  for (; first < last; ++first) to[first] = rounded(t[first]);
}

KERNEL void widen_all(const bf16* from, float* to, int64_t first, int64_t last) {
  for (; first + kLanes <= last; first += kLanes) store(to + first, widen(from + first));
  for (; first < last; ++first) to[first] = widened(from[first]);
}

// dt = dy B of rows [first, last); only where B is not zero.
inline void project_back(const Linear& call, const Adapter& adapter, int64_t first, int64_t last,
                         float* dt) {
  const int64_t each = adapter.ranks_each();
  for (int64_t row = first; row < last; ++row)
    for (int64_t part = 0; part < adapter.num_parts; ++part) {
      const int64_t begin = adapter.part_begin(part), size = adapter.part_ends[part] - begin;
      for (int64_t j = 0; j < each; j += kMaxRows)
        dots<kMaxRows>(call.x + row * call.out + begin,
                       adapter.b + (part * each + j) * call.out + begin, call.out, size,
                       dt + row * adapter.rank + part * each + j, each - j);
    }
}

// Gradient by 32 columns of A: dt^T x.
inline void grad_a_of(const Adapter& adapter, const float* dt, const bf16* x, int64_t rows, int64_t in,
                      int64_t column, float* grad) {
  float sums[kMaxRows * kColumns];
  for (int64_t j = 0; j < adapter.rank; j += kMaxRows) {
    const int64_t count = adapter.rank - j < kMaxRows ? adapter.rank - j : kMaxRows;
    sum_products<kMaxRows>(dt + j, adapter.rank, x + column, in, rows, sums, count);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(grad + (j + i) * in + column, sums + i * kColumns, sizeof(float) * kColumns);
  }
}

// Gradient by B of 32 outputs of one part: dy^T t, [out, ranks of a part].
inline void grad_b_of(const Adapter& adapter, const float* t, const bf16* dy, int64_t rows, int64_t out,
                      int64_t column, float* grad) {
  const int64_t each = adapter.ranks_each();
  int64_t part = 0;
  while (column >= adapter.part_ends[part]) ++part;
  float sums[kMaxRows * kColumns];
  for (int64_t j = 0; j < each; j += kMaxRows) {
    const int64_t count = each - j < kMaxRows ? each - j : kMaxRows;
    sum_products<kMaxRows>(t + part * each + j, adapter.rank, dy + column, out, rows, sums, count);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < kColumns; ++c) grad[(column + c) * each + j + i] = sums[i * kColumns + c];
  }
}

}  // namespace

extern "C" {

// y = x W^T + bias + t B^T with t = x A^T, rounded, [rows, rank]; rank is even.
//
// The rest as in linear; a [rank, in], b [rank, out]; part_ends [num_parts], multiples of 32: where
// parts of the outputs end that have their own, even, share of the ranks.
void EXPORT(adapted)(int format, const bf16* x, const uint8_t* w, const bf16* bias, bf16* y, int64_t rows,
                     int64_t in, int64_t out, const bf16* a, const bf16* b, int64_t rank,
                     const int64_t* part_ends, int64_t num_parts, bf16* t, int threads) {
  static thread_local std::vector<float> numbers;
  static thread_local std::vector<int8_t> bytes;
  static thread_local std::vector<int32_t> slots;  // All rows have slot 0.
  const Linear call{x, w, bias, y, rows, in, out, nullptr};
  const bool rounds = format != kBf16;
  const int64_t groups = format == kInt4 ? in / kGroup : 1, scales = rounds ? rows * groups : 0;
  grow(numbers, 2 * scales);
  grow(bytes, rounds ? rows * in : 0);
  grow(slots, rows);
  const Bytes rounded{bytes.data(), numbers.data(), numbers.data() + scales, groups};
  const Adapters adapters{slots.data(), a, b, rank, t, part_ends, num_parts};
#pragma omp parallel num_threads(threads)
  {
    int64_t first, last;
    share(rows, first, last);
    if (rounds)
      for (int64_t row = first; row < last; ++row) round_row((Format)format, call, rounded, row);
    for (int64_t row = first; row < last; row += kRunRows)
      for (int64_t chunk = 0; chunk < adapters.num_chunks(0); ++chunk)
        project(x, in, adapters, {row, last - row < kRunRows ? last - row : kRunRows}, chunk);
#pragma omp barrier
    share(out / kColumns, first, last);
    for (int64_t block = first; block < last; ++block)
      for (int64_t row = 0; row < rows; row += kMaxRows)
        tile_of<kMaxRows>((Format)format, call, rounded, &adapters, row, block,
                          rows - row < kMaxRows ? rows - row : kMaxRows);
  }
}

// Gradients of the former for dy [rows, out]: dx [rows, in], grad_a [rank, in], and grad_b
// [out, rank / num_parts] within each part's block.
void EXPORT(adapted_back)(int format, const bf16* x, const bf16* t, const bf16* dy, const uint8_t* w,
                          int64_t rows, int64_t in, int64_t out, const bf16* a, const bf16* b,
                          int64_t rank, const int64_t* part_ends, int64_t num_parts, bf16* dx,
                          float* grad_a, float* grad_b, int threads) {
  static thread_local std::vector<float> numbers;
  static thread_local std::vector<bf16> halves;
  const Linear call{dy, w, nullptr, dx, rows, in, out, nullptr};
  const Adapter adapter{a, b, rank, part_ends, num_parts};
  grow(numbers, 2 * rows * rank);
  grow(halves, rows * rank);
  float *exact_dt = numbers.data(), *exact_t = exact_dt + rows * rank;
  bf16* dt = halves.data();
#pragma omp parallel num_threads(threads)
  {
    static thread_local InputRoom room;
    int64_t first, last;
    share(rows, first, last);
    project_back(call, adapter, first, last, exact_dt);
    round_projections(exact_dt, dt, first * rank, last * rank);
    widen_all(t, exact_t, first * rank, last * rank);
#pragma omp barrier
    room.fit(call, rank);
    share(in / kColumns, first, last);
    for (int64_t block = first; block < last; ++block) {
      gradient_of((Format)format, call, block * kColumns, room, {dt, a, rank});
      grad_a_of(adapter, exact_dt, x, rows, in, block * kColumns, grad_a);
    }
    share(out / kColumns, first, last);
    for (int64_t block = first; block < last; ++block)
      grad_b_of(adapter, exact_t, dy, rows, out, block * kColumns, grad_b);
  }
}

}  // extern "C"
