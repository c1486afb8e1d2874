// Linear layers on packed weights, with segmented LoRA, for CPUs with AVX512-BF16.
//
// A plain C interface, bound by ops/native/library.py.

#include "simd.h"

namespace {

// What one call of collm_linear computes; shapes as in its declaration.
struct Linear {
  const bf16* x;
  const bf16* w;
  const bf16* bias;
  bf16* y;
  int64_t rows, in, out;
};

// Adapter factors of all slots, and the projections t = x A^T of this call's rows [rows, rank].
struct Adapters {
  const int32_t* slots;
  const bf16* a;
  const bf16* b;
  int64_t rank;
  const float* t;
};

// Adds t B^T of one row to two registers of accumulators, for 32 columns from `column`.
INLINE_KERNEL void add_adapter(const Adapters& adapters, const Linear& call, int64_t row,
                               int64_t column, __m512& low, __m512& high) {
  const int64_t slot = adapters.slots[row];
  if (slot < 0) return;
  const bf16* b = adapters.b + slot * adapters.rank * call.out + column;
  const float* t = adapters.t + row * adapters.rank;
  for (int64_t j = 0; j < adapters.rank; ++j, b += call.out) {
    const __m512 factor = _mm512_set1_ps(t[j]);
    low = _mm512_fmadd_ps(factor, widen(b), low);
    high = _mm512_fmadd_ps(factor, widen(b + 16), high);
  }
}

// One tile: ROWS rows times the 32 columns of packed block `block`. With few rows, DEPTH sums run side
// by side, since one sum would wait for itself.
template <int ROWS, int DEPTH>
KERNEL void tile(const Linear& call, const Adapters* adapters, int64_t first_row, int64_t block) {
  const int64_t depth = call.in / 2;
  const uint32_t* w = (const uint32_t*)call.w + block * depth * kColumns;
  const uint32_t* x = (const uint32_t*)call.x + first_row * depth;
  __m512 low[ROWS][DEPTH], high[ROWS][DEPTH];
  for (int r = 0; r < ROWS; ++r)
    for (int d = 0; d < DEPTH; ++d) low[r][d] = high[r][d] = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + DEPTH <= depth; k += DEPTH)
    for (int d = 0; d < DEPTH; ++d) {
      const __m512bh w_low = pairs(w + (k + d) * kColumns);
      const __m512bh w_high = pairs(w + (k + d) * kColumns + 16);
      for (int r = 0; r < ROWS; ++r) {
        const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)x[r * depth + k + d]);
        low[r][d] = _mm512_dpbf16_ps(low[r][d], w_low, pair);
        high[r][d] = _mm512_dpbf16_ps(high[r][d], w_high, pair);
      }
    }
  for (; k < depth; ++k)
    for (int r = 0; r < ROWS; ++r) {
      const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)x[r * depth + k]);
      low[r][0] = _mm512_dpbf16_ps(low[r][0], pairs(w + k * kColumns), pair);
      high[r][0] = _mm512_dpbf16_ps(high[r][0], pairs(w + k * kColumns + 16), pair);
    }
  const int64_t column = block * kColumns;
  for (int r = 0; r < ROWS; ++r) {
    for (int d = 1; d < DEPTH; ++d) {
      low[r][0] = _mm512_add_ps(low[r][0], low[r][d]);
      high[r][0] = _mm512_add_ps(high[r][0], high[r][d]);
    }
    if (call.bias) {
      low[r][0] = _mm512_add_ps(low[r][0], widen(call.bias + column));
      high[r][0] = _mm512_add_ps(high[r][0], widen(call.bias + column + 16));
    }
    if (adapters) add_adapter(*adapters, call, first_row + r, column, low[r][0], high[r][0]);
    bf16* y = call.y + (first_row + r) * call.out + column;
    narrow(y, low[r][0]);
    narrow(y + 16, high[r][0]);
  }
}

KERNEL void tile_of(const Linear& call, const Adapters* adapters, int64_t row, int64_t block,
                    int64_t rows) {
  switch (rows) {
    case 1: return tile<1, 4>(call, adapters, row, block);
    case 2: return tile<2, 4>(call, adapters, row, block);
    case 3: return tile<3, 2>(call, adapters, row, block);
    case 4: return tile<4, 2>(call, adapters, row, block);
    case 5: return tile<5, 1>(call, adapters, row, block);
    case 6: return tile<6, 1>(call, adapters, row, block);
    case 7: return tile<7, 1>(call, adapters, row, block);
    default: return tile<8, 1>(call, adapters, row, block);
  }
}

// t = x A^T for every row with an adapter; work items are (row, j), split evenly over the threads.
KERNEL void project(const Linear& call, const Adapters& adapters, float* t, int64_t first,
                    int64_t last) {
  for (int64_t item = first; item < last; ++item) {
    const int64_t row = item / adapters.rank, j = item % adapters.rank;
    const int64_t slot = adapters.slots[row];
    if (slot < 0) continue;
    const bf16* x = call.x + row * call.in;
    const bf16* a = adapters.a + (slot * adapters.rank + j) * call.in;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t k = 0; k < call.in; k += 32) sum = _mm512_dpbf16_ps(sum, pairs(x + k), pairs(a + k));
    t[item] = _mm512_reduce_add_ps(sum);
  }
}

}  // namespace

extern "C" {

// Whether this CPU has every instruction that the kernels use.
int collm_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16");
}

// y = x W^T + bias, plus (x A^T) B^T for rows whose slot is not negative.
//
// x [rows, in]; w packed [out / 32, in / 2, 32, 2]; bias [out] or null; y [rows, out];
// slots [rows] or null for no adapters; a [slots, rank, in]; b [slots, rank, out].
// in and out are multiples of 32.
void collm_linear(const bf16* x, const bf16* w, const bf16* bias, bf16* y, int64_t rows, int64_t in,
                  int64_t out, const int32_t* slots, const bf16* a, const bf16* b, int64_t rank,
                  int threads) {
  const Linear call{x, w, bias, y, rows, in, out};
  std::vector<float> t(slots ? rows * rank : 0);
  const Adapters adapters{slots, a, b, rank, t.data()};
#pragma omp parallel num_threads(threads)
  {
    int64_t first, last;
    if (slots) {
      share(rows * rank, first, last);
      project(call, adapters, t.data(), first, last);
#pragma omp barrier
    }
    share(out / kColumns, first, last);
    for (int64_t block = first; block < last; ++block)
      for (int64_t row = 0; row < rows; row += kMaxRows)
        tile_of(call, slots ? &adapters : nullptr, row, block,
                rows - row < kMaxRows ? rows - row : kMaxRows);
  }
}

}  // extern "C"
