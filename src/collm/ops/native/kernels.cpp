// Kernels for CPUs with AVX512-BF16, behind a plain C interface (bound by ops/native/library.py).
//
// bfloat16 travels as uint16_t. Only functions marked KERNEL use wide instructions; the library can be
// loaded on any x86-64 CPU, and collm_supported says whether the others may be called.

#include <immintrin.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define KERNEL __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define INLINE_KERNEL KERNEL __attribute__((always_inline)) static inline

namespace {

using bf16 = uint16_t;

constexpr int kColumns = 32;  // Output columns of a packed block: two registers of accumulators.
constexpr int64_t kSmall = 1 << 15;  // Elements up to which a second thread is not worth waking.
constexpr int kMaxRows = 8;   // Rows of a register tile: 16 accumulators, which hide the latency.

INLINE_KERNEL __m512bh pairs(const void* address) { return (__m512bh)_mm512_loadu_si512(address); }

INLINE_KERNEL __m512 widen(const bf16* address) {
  const __m256i half = _mm256_loadu_si256((const __m256i*)address);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE_KERNEL void narrow(bf16* address, __m512 value) {
  _mm256_storeu_si256((__m256i*)address, (__m256i)_mm512_cvtneps_pbh(value));
}

// exp, to a few units in the last place of a float: 2^n times a polynomial on |r| <= ln(2) / 2.
INLINE_KERNEL __m512 exponential(__m512 x) {
  x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-104.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

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

void share(int64_t total, int64_t& first, int64_t& last) {
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  first = total * thread / threads;
  last = total * (thread + 1) / threads;
}

// What one call of collm_decode_attention computes; shapes as in its declaration.
struct Decode {
  const bf16* q;
  int64_t q_stride;
  const bf16* cache;
  const int64_t* blocks;
  int64_t max_blocks;
  const int64_t* lengths;
  bf16* out;
  int64_t heads, kv_heads, head_dim, block_size, window;
  float scale;
};

// Attends the query heads of one row that share key head `kv_head`. `scores` has room for
// [group, length]; `sums` for [group, head_dim].
KERNEL void attend(const Decode& call, int64_t row, int64_t kv_head, float* scores, float* sums) {
  const int64_t dim = call.head_dim, group = call.heads / call.kv_heads;
  const int64_t length = call.lengths[row];
  const int64_t start = call.window > 0 && length > call.window ? length - call.window : 0;
  const int64_t token_stride = 2 * call.kv_heads * dim;
  const int64_t* table = call.blocks + row * call.max_blocks;
  const bf16* q = call.q + row * call.q_stride + kv_head * group * dim;
  const auto key = [&](int64_t p) {
    const int64_t slot = table[p / call.block_size] * call.block_size + p % call.block_size;
    return call.cache + slot * token_stride + kv_head * dim;
  };
  for (int64_t p = start; p < length; ++p) {
    const bf16* k = key(p);
    for (int64_t g = 0; g < group; ++g) {
      __m512 sum = _mm512_setzero_ps();
      for (int64_t d = 0; d < dim; d += 32)
        sum = _mm512_dpbf16_ps(sum, pairs(q + g * dim + d), pairs(k + d));
      scores[g * length + p] = _mm512_reduce_add_ps(sum) * call.scale;
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    float* row_scores = scores + g * length;
    float top = -INFINITY;
    for (int64_t p = start; p < length; ++p) top = std::fmax(top, row_scores[p]);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t p = start; p < length; p += 16) {
      const int64_t left = length - p;
      const __mmask16 some = left < 16 ? (__mmask16)((1 << left) - 1) : (__mmask16)-1;
      const __m512 score = _mm512_maskz_loadu_ps(some, row_scores + p);
      const __m512 weight = exponential(_mm512_sub_ps(score, _mm512_set1_ps(top)));
      sum = _mm512_mask_add_ps(sum, some, sum, weight);
      _mm512_mask_storeu_ps(row_scores + p, some, weight);
    }
    const float share = 1.0f / _mm512_reduce_add_ps(sum);
    for (int64_t p = start; p < length; ++p) row_scores[p] *= share;
  }
  std::memset(sums, 0, sizeof(float) * group * dim);
  for (int64_t p = start; p < length; ++p) {
    const bf16* v = key(p) + call.kv_heads * dim;
    for (int64_t d = 0; d < dim; d += 16) {
      const __m512 value = widen(v + d);
      for (int64_t g = 0; g < group; ++g) {
        float* sum = sums + g * dim + d;
        const __m512 weight = _mm512_set1_ps(scores[g * length + p]);
        _mm512_storeu_ps(sum, _mm512_fmadd_ps(weight, value, _mm512_loadu_ps(sum)));
      }
    }
  }
  bf16* out = call.out + (row * call.heads + kv_head * group) * dim;
  for (int64_t d = 0; d < group * dim; d += 16) narrow(out + d, _mm512_loadu_ps(sums + d));
}

KERNEL void normalize_row(const bf16* x, const bf16* weight, bf16* y, int64_t width, float eps) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < width; i += 16) {
    const __m512 value = widen(x + i);
    sum = _mm512_fmadd_ps(value, value, sum);
  }
  const float mean = _mm512_reduce_add_ps(sum) / (float)width;
  const __m512 factor = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
  for (int64_t i = 0; i < width; i += 16)
    narrow(y + i, _mm512_mul_ps(_mm512_mul_ps(widen(x + i), factor), widen(weight + i)));
}

KERNEL void gate_row(const bf16* gate_up, bf16* y, int64_t width) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < width; i += 16) {
    const __m512 gate = widen(gate_up + i), up = widen(gate_up + width + i);
    const __m512 falling = exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate));
    narrow(y + i, _mm512_mul_ps(_mm512_div_ps(gate, _mm512_add_ps(one, falling)), up));
  }
}

// Copies bfloat16 values, infinities and NaN as zero: their exponent is all ones.
KERNEL void copy_finite(const bf16* from, bf16* to, int64_t count) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  for (int64_t i = 0; i < count; i += 32) {
    const __m512i value = _mm512_loadu_si512(from + i);
    const __mmask32 finite =
        _mm512_cmpneq_epi16_mask(_mm512_and_si512(value, exponent), exponent);
    _mm512_storeu_si512(to + i, _mm512_maskz_mov_epi16(finite, value));
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

// Attention of one new token per row over its paged keys, that token's own included.
//
// q [rows, heads, head_dim], rows q_stride apart; cache [num_blocks, block_size, 2, kv_heads, head_dim];
// blocks [rows, max_blocks]; lengths [rows]: keys of each row; out [rows, heads * head_dim];
// window: keys a row may look back on, itself included, 0 for all. head_dim is a multiple of 32.
void collm_decode_attention(const bf16* q, int64_t q_stride, const bf16* cache, const int64_t* blocks,
                            int64_t max_blocks, const int64_t* lengths, bf16* out, int64_t rows,
                            int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                            int64_t window, float scale, int threads) {
  const Decode call{q,     q_stride, cache,    blocks,     max_blocks, lengths, out,
                    heads, kv_heads, head_dim, block_size, window,     scale};
  const int64_t group = heads / kv_heads;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> scores(group * max_blocks * block_size), sums(group * head_dim);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < rows * kv_heads; ++item)
      attend(call, item / kv_heads, item % kv_heads, scores.data(), sums.data());
  }
}

// Root-mean-square norm of each row: x and y [rows, width], weight [width]; width is a multiple of 16.
void collm_rms_norm(const bf16* x, const bf16* weight, bf16* y, int64_t rows, int64_t width,
                    float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    normalize_row(x + row * width, weight, y + row * width, width, eps);
}

// silu(gate) * up: gate_up [rows, 2 * width], gate first; y [rows, width]; width is a multiple of 16.
void collm_silu_mul(const bf16* gate_up, bf16* y, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    gate_row(gate_up + row * 2 * width, y + row * width, width);
}

// Writes kv [rows, width] to rows of cache [cache_rows, width]; width is a multiple of 32.
void collm_write_rows(const bf16* kv, bf16* cache, const int64_t* rows_of, int64_t rows,
                      int64_t width) {
  for (int64_t row = 0; row < rows; ++row)
    copy_finite(kv + row * width, cache + rows_of[row] * width, width);
}

}  // extern "C"
