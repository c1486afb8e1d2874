// Rows of logits: cross-entropy with its gradient.

#pragma once

#include "common.h"

namespace {

// The loss of one row [size]. Its gradient goes to `gradient`, unless that is null; it may be the logits'
// own place.
KERNEL float cross_entropy_of(const bf16* logits, int64_t size, int64_t target, bf16* gradient) {
  Floats tops = all(-INFINITY);
  for (int64_t i = 0; i < size; i += kLanes) tops = max(tops, widen(logits + i));
  const float top = highest(tops);
  Floats sums = zeros();
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats below = sub(widen(logits + i), all(top));
    // The exponential of what is no number is one; zero times it is none, and makes the loss none.
    sums = add(sums, fma(below, zeros(), exponential(below)));
  }
  const float sum = total(sums), score = widened(logits[target]);
  if (gradient) {
    const Floats share = all(1.0f / sum);
    for (int64_t i = 0; i < size; i += kLanes)
      narrow(gradient + i, mul(exponential(sub(widen(logits + i), all(top))), share));
    gradient[target] = rounded(std::exp(score - top) / sum - 1.0f);
  }
  return std::log(sum) + (top - score);
}

}  // namespace

extern "C" {

// logits [rows, size]; targets [rows]; losses [rows]; gradient [rows, size] or null, may be logits. size
// is a multiple of 16.
void EXPORT(cross_entropy)(const bf16* logits, const int64_t* targets, float* losses, bf16* gradient,
                           int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * size > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    losses[row] = cross_entropy_of(logits + row * size, size, targets[row],
                                   gradient ? gradient + row * size : nullptr);
}

}  // extern "C"
