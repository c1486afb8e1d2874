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

// The gradients of an adapter by tile registers. What is summed over rows needs them as pairs: each thread
// turns the columns that it needs, once for all ranks.
class AdapterTiles {
 public:
  // Room for 32 columns of `rows` rows, and for as many factors of `size` elements.
  void fit(int64_t rows, int64_t size) {
    grow(panel_, std::max(whole_panels(rows), size) / 2 * kColumns);
  }

  // to[rank, 32] = factors[rank, rows] values[rows, 32 columns], summed over all of `parts` factors, which lie
  // behind one another; `width` from a row of values to the next.
  void sum_rows(const bf16* factors, int64_t parts, int64_t part_size, int64_t ranks, const bf16* values,
                int64_t width, int64_t rows, float* to) {
    pair_rows(values, width, rows);
    const int64_t padded = whole_panels(rows);
    const uint32_t* w = panel_.data();
    for (int64_t j = 0, some; j < ranks; j += some) {
      some = rows_at_once(ranks - j);
      for (int64_t part = 0; part < parts; ++part) {
        const auto* own = (const uint32_t*)(factors + part * part_size + j * padded);
        const auto multiply = part ? multiply_tiles<true> : multiply_tiles<false>;
        multiply(own, padded / 2, w, w + kLanes, kColumns, padded / 2, some, to + j * kColumns, kColumns);
      }
    }
  }

  // to[rows, 32], of so many at once, become x[rows, size] times as many rows of factors, up to 32 of them.
  void project(const bf16* x, int64_t stride, int64_t size, int64_t rows, float* to) const {
    const uint32_t* w = panel_.data();
    multiply_tiles<false>((const uint32_t*)x, stride / 2, w, w + kLanes, kColumns, size / 2, rows, to,
                          kColumns);
  }

  // Lays up to 32 rows of factors ready for `project`.
  void turn_factors(const bf16* factors, int64_t stride, int64_t size, int64_t count) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto* pairs = (const uint32_t*)(factors + c * stride);
      for (int64_t k = 0; k < size / 2; ++k) panel_[k * kColumns + c] = c < count ? pairs[k] : 0;
    }
  }

 private:
  KERNEL void pair_rows(const bf16* values, int64_t width, int64_t rows) {
    const Words none = all_words(0);
    uint32_t* to = panel_.data();
    for (int64_t row = 0; row < whole_panels(rows); row += 2, values += 2 * width, to += kColumns) {
      Words low, high;
      interleave(row < rows ? load_words(values) : none, row + 1 < rows ? load_words(values + width) : none,
                 low, high);
      store_words(to, low), store_words(to + kLanes, high);
    }
  }

  std::vector<uint32_t> panel_;
};

// What the gradients of one call's adapter share between threads: projections turned, [ranks, padded rows].
struct Turned {
  std::vector<bf16> t, dt;  // dt as two parts, whose sum has twice the digits.
};

// Turns rows [first, last) of t and dt.
inline void turn_projections(const bf16* t, const float* dt, int64_t rank, int64_t padded, int64_t first,
                             int64_t last, Turned& to) {
  for (int64_t row = first; row < last; ++row)
    for (int64_t j = 0; j < rank; ++j) {
      const float exact = dt[row * rank + j];
      const bf16 high = rounded(exact);
      to.t[j * padded + row] = t[row * rank + j];
      to.dt[j * padded + row] = high;
      to.dt[(rank + j) * padded + row] = rounded(exact - widened(high));
    }
}

// dt = dy B of rows [first, last), as project_back.
inline void project_back_with_tiles(const Linear& call, const Adapter& adapter, int64_t first, int64_t last,
                                    AdapterTiles& tiles, float* dt) {
  const int64_t each = adapter.ranks_each();
  const Tiles registers(last - first);
  alignas(64) float sums[2 * kTallRows * kColumns];
  for (int64_t part = 0; part < adapter.num_parts; ++part)
    for (int64_t j = 0; j < each; j += kColumns) {
      const int64_t begin = adapter.part_begin(part), size = adapter.part_ends[part] - begin;
      const int64_t count = each - j < kColumns ? each - j : kColumns, rank = part * each + j;
      tiles.turn_factors(adapter.b + rank * call.out + begin, call.out, size, count);
      for (int64_t row = first, some; row < last; row += some) {
        some = rows_at_once(last - row);
        tiles.project(call.x + row * call.out + begin, call.out, size, some, sums);
        for (int64_t r = 0; r < some; ++r)
          std::memcpy(dt + (row + r) * adapter.rank + rank, sums + r * kColumns, sizeof(float) * count);
      }
    }
}

// Gradients by A and B, as grad_a_of and grad_b_of, of this thread's blocks of 32 columns of each.
inline void grad_factors_with_tiles(const Adapter& adapter, const Turned& turned, const Linear& call,
                                    const bf16* x, AdapterTiles& tiles, float* grad_a, float* grad_b) {
  const int64_t rank = adapter.rank, each = adapter.ranks_each(), padded = whole_panels(call.rows);
  static thread_local std::vector<float> sums;
  grow(sums, rank * kColumns);
  int64_t first, last;
  share(call.in / kColumns, first, last);
  {
    const Tiles registers(rank);
    for (int64_t column = first * kColumns; column < last * kColumns; column += kColumns) {
      tiles.sum_rows(turned.dt.data(), 2, rank * padded, rank, x + column, call.in, call.rows, sums.data());
      for (int64_t j = 0; j < rank; ++j)
        std::memcpy(grad_a + j * call.in + column, sums.data() + j * kColumns, sizeof(float) * kColumns);
    }
  }
  share(call.out / kColumns, first, last);
  const Tiles registers(each);
  for (int64_t column = first * kColumns; column < last * kColumns; column += kColumns) {
    int64_t part = 0;
    while (column >= adapter.part_ends[part]) ++part;
    tiles.sum_rows(turned.t.data() + part * each * padded, 1, 0, each, call.x + column, call.out, call.rows,
                   sums.data());
    for (int64_t j = 0; j < each; ++j)
      for (int64_t c = 0; c < kColumns; ++c) grad_b[(column + c) * each + j] = sums[j * kColumns + c];
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
    all_rows((Format)format, call, rounded, &adapters, first, last);
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
  static thread_local Turned kept;
  Turned& turned = kept;  // That of the calling thread, in all threads.
  const bool tiles = takes_tiles(rows, out / 2);
  const int64_t padded = whole_panels(rows);
  if (tiles) turned.t.assign(rank * padded, 0), turned.dt.assign(2 * rank * padded, 0);
#pragma omp parallel num_threads(threads)
  {
    static thread_local InputRoom room;
    static thread_local AdapterTiles own;
    own.fit(rows, out);
    int64_t first, last;
    share(rows, first, last);
    if (tiles) {
      project_back_with_tiles(call, adapter, first, last, own, exact_dt);
      turn_projections(t, exact_dt, rank, padded, first, last, turned);
    } else {
      project_back(call, adapter, first, last, exact_dt);
      widen_all(t, exact_t, first * rank, last * rank);
    }
    round_projections(exact_dt, dt, first * rank, last * rank);
#pragma omp barrier
    share(in / kColumns, first, last);
    gradients_of((Format)format, call, first, last, room, {dt, a, rank});
    if (tiles) {
      grad_factors_with_tiles(adapter, turned, call, x, own, grad_a, grad_b);
    } else {
      for (int64_t block = first; block < last; ++block)
        grad_a_of(adapter, exact_dt, x, rows, in, block * kColumns, grad_a);
      share(out / kColumns, first, last);
      for (int64_t block = first; block < last; ++block)
        grad_b_of(adapter, exact_t, dy, rows, out, block * kColumns, grad_b);
    }
  }
}

}  // extern "C"
