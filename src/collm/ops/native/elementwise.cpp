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

// Gradient of normalize_row by x, for dy of its output.
KERNEL void normalize_row_back(const bf16* dy, const bf16* x, const bf16* weight, bf16* dx,
                               int64_t width, float eps) {
  __m512 squares = _mm512_setzero_ps(), products = _mm512_setzero_ps();
  for (int64_t i = 0; i < width; i += 16) {
    const __m512 value = widen(x + i), d = _mm512_mul_ps(widen(dy + i), widen(weight + i));
    squares = _mm512_fmadd_ps(value, value, squares);
    products = _mm512_fmadd_ps(value, d, products);
  }
  const float mean = _mm512_reduce_add_ps(squares) / (float)width;
  const float factor = 1.0f / std::sqrt(mean + eps);
  const __m512 along = _mm512_set1_ps(_mm512_reduce_add_ps(products) / (float)width * factor * factor);
  for (int64_t i = 0; i < width; i += 16) {
    const __m512 d = _mm512_mul_ps(widen(dy + i), widen(weight + i));
    const __m512 rest = _mm512_fnmadd_ps(along, widen(x + i), d);
    narrow(dx + i, _mm512_mul_ps(rest, _mm512_set1_ps(factor)));
  }
}

// Gradient of gate_row by its input, for dy of its output.
KERNEL void gate_row_back(const bf16* dy, const bf16* gate_up, bf16* d_gate_up, int64_t width) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < width; i += 16) {
    const __m512 gate = widen(gate_up + i), up = widen(gate_up + width + i), d = widen(dy + i);
    const __m512 falling = exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate));
    const __m512 sigmoid = _mm512_div_ps(one, _mm512_add_ps(one, falling));
    const __m512 silu = _mm512_mul_ps(gate, sigmoid);
    // silu' = sigmoid (1 + gate (1 - sigmoid)) = sigmoid + silu (1 - sigmoid)
    const __m512 slope = _mm512_fmadd_ps(silu, _mm512_sub_ps(one, sigmoid), sigmoid);
    narrow(d_gate_up + i, _mm512_mul_ps(_mm512_mul_ps(d, up), slope));
    narrow(d_gate_up + width + i, _mm512_mul_ps(d, silu));
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

// Rotates one head by halves, as ops/rotary.py does: sin has its first half negated. `turn` is 1, or -1
// to rotate back.
KERNEL void rotate_head(const bf16* x, const bf16* cos, const bf16* sin, bf16* y, int64_t dim,
                        float turn) {
  const int64_t half = dim / 2;
  const __m512 sign = _mm512_set1_ps(turn);
  for (int64_t i = 0; i < half; i += 16) {
    const __m512 left = widen(x + i), right = widen(x + half + i);
    const __m512 sin_left = _mm512_mul_ps(widen(sin + i), sign);
    const __m512 sin_right = _mm512_mul_ps(widen(sin + half + i), sign);
    narrow(y + i, _mm512_fmadd_ps(left, widen(cos + i), _mm512_mul_ps(right, sin_left)));
    narrow(y + half + i,
           _mm512_fmadd_ps(right, widen(cos + half + i), _mm512_mul_ps(left, sin_right)));
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

// Gradients of the two by their inputs; shapes as theirs, those of dy as their outputs'.
void collm_rms_norm_back(const bf16* dy, const bf16* x, const bf16* weight, bf16* dx, int64_t rows,
                         int64_t width, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    normalize_row_back(dy + row * width, x + row * width, weight, dx + row * width, width, eps);
}

void collm_silu_mul_back(const bf16* dy, const bf16* gate_up, bf16* d_gate_up, int64_t rows,
                         int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    gate_row_back(dy + row * width, gate_up + row * 2 * width, d_gate_up + row * 2 * width, width);
}

// Rotates heads: x [rows, heads, dim], rows x_stride apart; cos, sin [rows, dim]; y [rows, heads, dim].
// dim is a multiple of 32; turn is 1, or -1 to rotate back.
void collm_rotate(const bf16* x, int64_t x_stride, const bf16* cos, const bf16* sin, bf16* y,
                  int64_t rows, int64_t heads, int64_t dim, float turn, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * heads * dim > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head)
      rotate_head(x + row * x_stride + head * dim, cos + row * dim, sin + row * dim,
                  y + (row * heads + head) * dim, dim, turn);
}

// Writes kv [rows, width] to rows of cache [cache_rows, width]; width is a multiple of 32.
void collm_write_rows(const bf16* kv, bf16* cache, const int64_t* rows_of, int64_t rows,
                      int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    copy_finite(kv + row * width, cache + rows_of[row] * width, width);
}

}  // extern "C"
