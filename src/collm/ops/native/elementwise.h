// Norm, gate and rotation.

#pragma once

#include "common.h"

namespace {

KERNEL void normalize_row(const bf16* x, const bf16* weight, bf16* y, int64_t width, float eps) {
  Floats sum = zeros();
  for (int64_t i = 0; i < width; i += 16) {
    const Floats value = widen(x + i);
    sum = fma(value, value, sum);
  }
  const float mean = total(sum) / (float)width;
  const Floats factor = all(1.0f / std::sqrt(mean + eps));
  for (int64_t i = 0; i < width; i += 16)
    narrow(y + i, mul(mul(widen(x + i), factor), widen(weight + i)));
}

KERNEL void gate(const bf16* gates, const bf16* ups, bf16* y, int64_t width) {
  const Floats one = all(1.0f);
  for (int64_t i = 0; i < width; i += 16) {
    const Floats gate = widen(gates + i);
    const Floats falling = exponential(sub(zeros(), gate));
    narrow(y + i, mul(div(gate, add(one, falling)), widen(ups + i)));
  }
}

// Gradient of normalize_row by x, for dy of its output.
KERNEL void normalize_row_back(const bf16* dy, const bf16* x, const bf16* weight, bf16* dx,
                               int64_t width, float eps) {
  Floats squares = zeros(), products = zeros();
  for (int64_t i = 0; i < width; i += 16) {
    const Floats value = widen(x + i), d = mul(widen(dy + i), widen(weight + i));
    squares = fma(value, value, squares);
    products = fma(value, d, products);
  }
  const float mean = total(squares) / (float)width;
  const float factor = 1.0f / std::sqrt(mean + eps);
  const Floats along = all(total(products) / (float)width * factor * factor);
  for (int64_t i = 0; i < width; i += 16) {
    const Floats d = mul(widen(dy + i), widen(weight + i));
    const Floats rest = fnma(along, widen(x + i), d);
    narrow(dx + i, mul(rest, all(factor)));
  }
}

// Gradient of gate by its inputs, side by side, for dy of its output.
KERNEL void gate_back(const bf16* dy, const bf16* gate_up, bf16* d_gate_up, int64_t width) {
  const Floats one = all(1.0f);
  for (int64_t i = 0; i < width; i += 16) {
    const Floats gate = widen(gate_up + i), up = widen(gate_up + width + i), d = widen(dy + i);
    const Floats falling = exponential(sub(zeros(), gate));
    const Floats sigmoid = div(one, add(one, falling));
    const Floats silu = mul(gate, sigmoid);
    // silu' = sigmoid (1 + gate (1 - sigmoid)) = sigmoid + silu (1 - sigmoid)
    const Floats slope = fma(silu, sub(one, sigmoid), sigmoid);
    narrow(d_gate_up + i, mul(mul(d, up), slope));
    narrow(d_gate_up + width + i, mul(d, silu));
  }
}

// Rotates one head by halves, as ops/rotary.py does: sin has its first half negated. `turn` is 1, or -1
// to rotate back.
KERNEL void rotate_head(const bf16* x, const bf16* cos, const bf16* sin, bf16* y, int64_t dim,
                        float turn) {
  const int64_t half = dim / 2;
  const Floats sign = all(turn);
  for (int64_t i = 0; i < half; i += 16) {
    const Floats left = widen(x + i), right = widen(x + half + i);
    const Floats sin_left = mul(widen(sin + i), sign);
    const Floats sin_right = mul(widen(sin + half + i), sign);
    narrow(y + i, fma(left, widen(cos + i), mul(right, sin_left)));
    narrow(y + half + i,
           fma(right, widen(cos + half + i), mul(left, sin_right)));
  }
}

}  // namespace

extern "C" {

// Root-mean-square norm of each row: x and y [rows, width], weight [width]; width is a multiple of 16.
void EXPORT(rms_norm)(const bf16* x, const bf16* weight, bf16* y, int64_t rows, int64_t width,
                    float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    normalize_row(x + row * width, weight, y + row * width, width, eps);
}

// silu(gate) * up: gate_up [rows, 2 * width], gate first; y [rows, width]; width is a multiple of 16.
void EXPORT(silu_mul)(const bf16* gate_up, bf16* y, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    gate(gate_up + row * 2 * width, gate_up + (row * 2 + 1) * width, y + row * width, width);
}

// Gradients of the two by their inputs; shapes as theirs, those of dy as their outputs'.
void EXPORT(rms_norm_back)(const bf16* dy, const bf16* x, const bf16* weight, bf16* dx, int64_t rows,
                         int64_t width, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    normalize_row_back(dy + row * width, x + row * width, weight, dx + row * width, width, eps);
}

void EXPORT(silu_mul_back)(const bf16* dy, const bf16* gate_up, bf16* d_gate_up, int64_t rows,
                         int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    gate_back(dy + row * width, gate_up + row * 2 * width, d_gate_up + row * 2 * width, width);
}

// Rotates heads: x [rows, heads, dim], rows x_stride apart; cos, sin [rows, dim]; y [rows, heads, dim].
// dim is a multiple of 32; turn is 1, or -1 to rotate back.
void EXPORT(rotate)(const bf16* x, int64_t x_stride, const bf16* cos, const bf16* sin, bf16* y,
                  int64_t rows, int64_t heads, int64_t dim, float turn, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * heads * dim > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head)
      rotate_head(x + row * x_stride + head * dim, cos + row * dim, sin + row * dim,
                  y + (row * heads + head) * dim, dim, turn);
}

}  // extern "C"
