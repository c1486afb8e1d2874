// Norm, gate, rotation and cache writes, for CPUs with AVX512-BF16.

#include "simd.h"

namespace {

constexpr int64_t kSmall = 1 << 15;  // Elements up to which a second thread is not worth waking.

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

// Rotates one head by halves, as ops/rotary.py does: sin has its first half negated.
KERNEL void rotate_head(const bf16* x, const bf16* cos, const bf16* sin, bf16* y, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const __m512 left = widen(x + i), right = widen(x + half + i);
    narrow(y + i, _mm512_fmadd_ps(left, widen(cos + i), _mm512_mul_ps(right, widen(sin + i))));
    narrow(y + half + i, _mm512_fmadd_ps(right, widen(cos + half + i),
                                         _mm512_mul_ps(left, widen(sin + half + i))));
  }
}

}  // namespace

extern "C" {

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

// Rotates heads: x [rows, heads, dim], rows x_stride apart; cos, sin [rows, dim]; y [rows, heads, dim].
// dim is a multiple of 32.
void collm_rotate(const bf16* x, int64_t x_stride, const bf16* cos, const bf16* sin, bf16* y,
                  int64_t rows, int64_t heads, int64_t dim, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * heads * dim > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head)
      rotate_head(x + row * x_stride + head * dim, cos + row * dim, sin + row * dim,
                  y + (row * heads + head) * dim, dim);
}

// Writes kv [rows, width] to rows of cache [cache_rows, width]; width is a multiple of 32.
void collm_write_rows(const bf16* kv, bf16* cache, const int64_t* rows_of, int64_t rows,
                      int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    copy_finite(kv + row * width, cache + rows_of[row] * width, width);
}

}  // extern "C"
