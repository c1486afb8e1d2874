// What the kernels share, on top of the vectors of a path (avx512.h or avx2.h).

#pragma once

#include <omp.h>

#include <cmath>
#include <cstring>
#include <vector>

// Before loops over a tile's rows: whole, they keep the tile's sums in registers.
#define UNROLL _Pragma("GCC unroll 8")

namespace {

constexpr int kLanes = 16;    // Of a vector.
constexpr int kColumns = 32;  // Output columns of a packed block: two vectors of sums.
constexpr int64_t kSmall = 1 << 15;  // Elements up to which a second thread is not worth waking.

// exp, to a few units in the last place of a float: 2^n times a polynomial on |r| <= ln(2) / 2.
INLINE_KERNEL Floats exponential(Floats x) {
  x = max(min(x, all(88.0f)), all(-104.0f));
  const Floats n = nearest(mul(x, all(1.44269504f)));
  Floats r = fnma(n, all(0.693359375f), x);
  r = fnma(n, all(-2.12194440e-4f), r);
  Floats p = all(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, r, all(c));
  return shift_exponent(p, n);
}

// Memory that will be needed next, asked for in steps while something else is computed.
struct Ahead {
  const uint8_t* at;
  int64_t step;  // In bytes.

  void ask() {
    __builtin_prefetch(at);
    at += step;
  }
};

// Asks for a line that is needed after those of now: past the first cache, which those of now fill.
inline void ask_later(const void* at) { __builtin_prefetch(at, 0, 2); }

// Asks for nothing.
struct Nothing {
  void ask() {}
};

// Adds x[r] W to sums of ROWS rows and 2 x 16 columns. x and W are pairs of bfloat16: x_stride from a row
// to the next, w_step from a step of W to the next. With few rows, several sums of each run side by side,
// since one sum would wait for itself. Every step asks `ahead` once.
template <int ROWS, typename Ask = Nothing>
INLINE_KERNEL void multiply(const uint32_t* x, int64_t x_stride, const uint32_t* w,
                            const uint32_t* w_beside, int64_t w_step, int64_t depth, Floats* low,
                            Floats* high, Ask ahead = {}) {
  constexpr int kSide = kSums / 2 / ROWS < 1 ? 1 : kSums / 2 / ROWS > 4 ? 4 : kSums / 2 / ROWS;
  Floats lows[ROWS][kSide], highs[ROWS][kSide];
  UNROLL
  for (int r = 0; r < ROWS; ++r) {
    lows[r][0] = low[r], highs[r][0] = high[r];
    UNROLL
    for (int d = 1; d < kSide; ++d) lows[r][d] = highs[r][d] = zeros();
  }
  int64_t k = 0;
  for (; k + kSide <= depth; k += kSide)
    UNROLL
    for (int d = 0; d < kSide; ++d) {
      ahead.ask();
      const Words w_low = load_words(w + (k + d) * w_step);
      const Words w_high = load_words(w_beside + (k + d) * w_step);
      UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const Words pair = all_words((int32_t)x[r * x_stride + k + d]);
        lows[r][d] = dot2(lows[r][d], w_low, pair);
        highs[r][d] = dot2(highs[r][d], w_high, pair);
      }
    }
  for (; k < depth; ++k)
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const Words pair = all_words((int32_t)x[r * x_stride + k]);
      lows[r][0] = dot2(lows[r][0], load_words(w + k * w_step), pair);
      highs[r][0] = dot2(highs[r][0], load_words(w_beside + k * w_step), pair);
    }
  UNROLL
  for (int r = 0; r < ROWS; ++r) {
    low[r] = lows[r][0], high[r] = highs[r][0];
    UNROLL
    for (int d = 1; d < kSide; ++d) low[r] = add(low[r], lows[r][d]), high[r] = add(high[r], highs[r][d]);
  }
}

// The same where the 32 columns lie side by side.
template <int ROWS>
INLINE_KERNEL void multiply(const uint32_t* x, int64_t x_stride, const uint32_t* w, int64_t w_step,
                            int64_t depth, Floats* low, Floats* high) {
  multiply<ROWS>(x, x_stride, w, w + kLanes, w_step, depth, low, high);
}

// sums [ROWS, 2 x 16], `sums_step` from a row to the next, become x W, or with ADDS gain it; the 32 columns of W
// lie side by side.
template <int ROWS, bool ADDS>
KERNEL void multiply_into(const uint32_t* x, int64_t x_stride, const uint32_t* w, int64_t w_step,
                          int64_t depth, float* sums, int64_t sums_step) {
  Floats low[ROWS], high[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; ++r) {
    low[r] = ADDS ? load(sums + r * sums_step) : zeros();
    high[r] = ADDS ? load(sums + r * sums_step + kLanes) : zeros();
  }
  multiply<ROWS>(x, x_stride, w, w_step, depth, low, high);
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    store(sums + r * sums_step, low[r]), store(sums + r * sums_step + kLanes, high[r]);
}

// Rounds floats to bfloat16; `size` is a multiple of 16.
KERNEL void narrow_all(const float* from, bf16* to, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) narrow(to + i, load(from + i));
}

// `size` rounded up to whole panels of 32.
inline int64_t whole_panels(int64_t size) { return (size + kColumns - 1) / kColumns * kColumns; }

// Makes room for `size` elements. Rooms are kept from call to call: fresh memory would cost more than
// what is written there.
template <typename T>
void grow(std::vector<T>& room, int64_t size) {
  if (room.size() < (size_t)size) room.resize(size);
}

// A float as bfloat16, to the nearest even; NaN stays NaN.
inline bf16 rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return (bf16)(bits >> 16 | 0x40);
  return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float widened(bf16 x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The part of `total` work items that falls to this thread.
inline void share(int64_t total, int64_t& first, int64_t& last) {
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  first = total * thread / threads;
  last = total * (thread + 1) / threads;
}

}  // namespace
