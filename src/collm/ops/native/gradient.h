// Gradients of linear layers by their inputs, from the same packed weights.

#pragma once

#include <algorithm>

#include "linear.h"

namespace {

constexpr int64_t kPanel = 8192;  // Outputs unpacked at once: with 32 inputs, half of a level-2 cache.

// Each unpack_ function turns the 32 x 32 weights of output block `block` and inputs from `input` into
// to[16 pairs of outputs][32 inputs], both outputs' bfloat16 in each word.

inline void unpack_bf16(const Linear& call, int64_t block, int64_t input, uint32_t* to) {
  const auto* w = (const uint64_t*)(call.w + (block * call.in + input) * kColumns * sizeof(bf16));
  for (int64_t k = 0; k < 16; ++k)  // A pair of inputs,
    for (int64_t c = 0; c < 16; ++c) {  // a pair of outputs: a transposition of two by two.
      const uint64_t x = w[k * 16 + c];
      const uint64_t turned =
          (x & 0xffff00000000ffff) | (x >> 16 & 0xffff0000) | (x & 0xffff0000) << 16;
      std::memcpy(to + c * kColumns + 2 * k, &turned, sizeof turned);
    }
}

// Writes the weights of one input for 16 outputs to the pairs from `to` on.
INLINE_KERNEL void scatter(Floats weights, uint32_t* to) {
  uint32_t pairs[kLanes / 2];
  narrow((bf16*)pairs, weights);
  for (int64_t c = 0; c < kLanes / 2; ++c) to[c * kColumns] = pairs[c];
}

template <int J>
INLINE_KERNEL Floats byte_of(Words x) { return to_floats(both(right<8 * J>(x), all_words(0xff))); }

KERNEL void unpack_int8(const Linear& call, int64_t block, int64_t input, uint32_t* to) {
  const uint8_t* record = call.w + block * (kScaleBytes + call.in * kColumns);
  const auto* w = (const uint32_t*)(record + kScaleBytes) + input / 4 * kColumns;
  for (int64_t k = 0; k < 8; ++k)
    for (int64_t half = 0; half < 2; ++half) {
      const Words four = load_words(w + k * kColumns + half * kLanes);
      const Floats scale = load((const float*)record + half * kLanes);
      const Floats zero = mul(all(-128.0f), scale);
      uint32_t* at = to + half * 8 * kColumns + 4 * k;
      scatter(fma(byte_of<0>(four), scale, zero), at);
      scatter(fma(byte_of<1>(four), scale, zero), at + 1);
      scatter(fma(byte_of<2>(four), scale, zero), at + 2);
      scatter(fma(byte_of<3>(four), scale, zero), at + 3);
    }
}

KERNEL void unpack_int4(const Linear& call, int64_t block, int64_t input, uint32_t* to) {
  const uint8_t* record = call.w + (block * call.in + input) / kGroup * kGroupBytes;
  for (int64_t half = 0; half < 2; ++half) {
    const Floats scale = widen((const bf16*)record + half * kLanes);
    const Floats least = widen((const bf16*)record + kColumns + half * kLanes);
    for (int64_t k = 0; k < 4; ++k) {
      const Words packed = load_words(record + 128 + (half * 4 + k) * 64);
      uint32_t* at = to + half * 8 * kColumns + 8 * k;
      for (int64_t high = 0; high < 2; ++high, at += 4) {
        const Words four = both(high ? right<4>(packed) : packed, all_words(0x0f0f0f0f));
        scatter(fma(byte_of<0>(four), scale, least), at);
        scatter(fma(byte_of<1>(four), scale, least), at + 1);
        scatter(fma(byte_of<2>(four), scale, least), at + 2);
        scatter(fma(byte_of<3>(four), scale, least), at + 3);
      }
    }
  }
}

KERNEL void unpack(Format format, const Linear& call, int64_t block, int64_t input, uint32_t* to) {
  if (format == kInt8) return unpack_int8(call, block, input, to);
  if (format == kInt4) return unpack_int4(call, block, input, to);
  unpack_bf16(call, block, input, to);
}

// Adds dy[row .. row + ROWS, outputs] W to sums [rows, 32] of the inputs that `panel` was unpacked for.
template <int ROWS>
KERNEL void add_gradient(const bf16* dy, int64_t dy_stride, const uint32_t* panel, int64_t depth,
                         float* sums) {
  Floats low[ROWS], high[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    low[r] = load(sums + r * kColumns), high[r] = load(sums + r * kColumns + kLanes);
  multiply<ROWS>((const uint32_t*)dy, dy_stride / 2, panel, kColumns, depth, low, high);
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    store(sums + r * kColumns, low[r]), store(sums + r * kColumns + kLanes, high[r]);
}

template <int ROWS>
KERNEL void add_gradient_of(const bf16* dy, int64_t dy_stride, const uint32_t* panel, int64_t depth,
                            float* sums, int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS)
      return add_gradient_of<ROWS - 1>(dy, dy_stride, panel, depth, sums, rows);
  add_gradient<ROWS>(dy, dy_stride, panel, depth, sums);
}

// Room of one thread.
struct InputRoom {
  std::vector<uint32_t> panel;  // Of outputs, or of an adapter's ranks: [most at once / 2, 32].
  std::vector<float> sums;      // [rows, 32]

  void fit(const Linear& call, int64_t rank) {
    grow(panel, std::max(std::min(call.out, kPanel), rank) / 2 * kColumns);
    grow(sums, call.rows * kColumns);
  }
};

// An adapter's part of the gradient, dt A, of dt [rows, rank] and A [rank, in]; null for none.
struct ThroughAdapter {
  const bf16* dt = nullptr;
  const bf16* a = nullptr;
  int64_t rank = 0;
};

// Adds x W of all rows to the sums; x lies `stride` from a row to the next, the panel has W.
inline void add_gradients(const bf16* x, int64_t stride, int64_t depth, int64_t rows, InputRoom& room) {
  for (int64_t row = 0; row < rows; row += kMaxRows)
    add_gradient_of<kMaxRows>(x + row * stride, stride, room.panel.data(), depth,
                              room.sums.data() + row * kColumns,
                              rows - row < kMaxRows ? rows - row : kMaxRows);
}

// The gradient by 32 inputs. In this call x is the gradient by the outputs [rows, out], y that by the
// inputs [rows, in].
KERNEL void gradient_of(Format format, const Linear& call, int64_t input, InputRoom& room,
                        const ThroughAdapter& adapter) {
  float* sums = room.sums.data();
  uint32_t* panel = room.panel.data();
  std::memset(sums, 0, sizeof(float) * call.rows * kColumns);
  if (adapter.dt) {
    for (int64_t j = 0; j < adapter.rank; j += 2)
      for (int64_t c = 0; c < kColumns; ++c) {
        const bf16* pair = adapter.a + j * call.in + input + c;
        panel[j / 2 * kColumns + c] = pair[0] | (uint32_t)pair[call.in] << 16;
      }
    add_gradients(adapter.dt, adapter.rank, adapter.rank / 2, call.rows, room);
  }
  for (int64_t first = 0; first < call.out; first += kPanel) {
    const int64_t size = call.out - first < kPanel ? call.out - first : kPanel;
    for (int64_t output = 0; output < size; output += kColumns)
      unpack(format, call, (first + output) / kColumns, input, panel + output / 2 * kColumns);
    add_gradients(call.x + first, call.out, size / 2, call.rows, room);
  }
  for (int64_t row = 0; row < call.rows; ++row) {
    narrow(call.y + row * call.in + input, load(sums + row * kColumns));
    narrow(call.y + row * call.in + input + kLanes, load(sums + row * kColumns + kLanes));
  }
}

}  // namespace
