// The plain C interface of linear layers, bound by ops/native/linears.py.

#pragma once

#include "gradient.h"
#include "linear.h"

extern "C" {

// y = x W^T + bias, plus (x A^T) B^T for rows whose slot is not negative.
//
// x [rows, in]; w packed as linear.h says; bias [out] or null; y [rows, out]; slots [rows] or null for
// no adapters; a [slots, rank, in]; b in blocks, as adapters.h says; ranks [slots]: of what each slot holds,
// for every part; part_ends [num_parts]: where parts of the outputs end that have their own, even, share of
// the ranks. in, out and they are multiples of 32.
void EXPORT(linear)(int format, const bf16* x, const uint8_t* w, const bf16* bias, bf16* y,
                    int64_t rows, int64_t in, int64_t out, const int32_t* slots, const bf16* a,
                    const bf16* b, const int32_t* ranks, int64_t rank, const int64_t* part_ends,
                    int64_t num_parts, int threads) {
  constexpr int64_t kFew = 8;  // Rows that the calling thread rounds faster than several could meet.
  const Linear call{x, w, bias, y, rows, in, out, nullptr};
  static thread_local std::vector<float> numbers;
  static thread_local std::vector<int8_t> bytes;
  static thread_local std::vector<bf16> projected;
  static thread_local std::vector<Run> runs;
  const bool rounds = format != kBf16;
  const int64_t groups = format == kInt4 ? in / kGroup : 1, scales = rounds ? rows * groups : 0;
  grow(numbers, 2 * scales);
  if (rounds) grow(bytes, rows * in);
  if (slots) grow(projected, rows * rank), find_runs(slots, rows, runs);
  const Bytes rounded{bytes.data(), numbers.data(), numbers.data() + scales, groups};
  const Adapters adapters{slots, a, b, rank, projected.data(), part_ends, num_parts, true, ranks};
  const std::vector<Run>& all_runs = runs;  // Those of the calling thread, in all threads.
  const bool rounds_apart = rounds && rows <= kFew;
  if (rounds_apart)
    for (int64_t row = 0; row < rows; ++row) round_row((Format)format, call, rounded, row);
#pragma omp parallel num_threads(threads)
  {
    int64_t first, last;
    if (rounds && !rounds_apart) {
      share(rows, first, last);
      for (int64_t row = first; row < last; ++row) round_row((Format)format, call, rounded, row);
    }
    if (slots) project_share(x, in, adapters, all_runs);
    if (slots || (rounds && !rounds_apart)) {
#pragma omp barrier
    }
    share(out / kColumns, first, last);
    all_rows((Format)format, call, rounded, slots ? &adapters : nullptr, first, last);
  }
}

// dx = dy W: dy [rows, out]; w packed as linear.h says; dx [rows, in].
void EXPORT(input_grad)(int format, const bf16* dy, const uint8_t* w, bf16* dx, int64_t rows,
                        int64_t in, int64_t out, int threads) {
  const Linear call{dy, w, nullptr, dx, rows, in, out, nullptr};
#pragma omp parallel num_threads(threads)
  {
    static thread_local InputRoom room;
    int64_t first, last;
    share(in / kColumns, first, last);
    gradients_of((Format)format, call, first, last, room, {});
  }
}

}  // extern "C"
