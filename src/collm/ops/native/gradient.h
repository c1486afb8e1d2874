// Gradients of linear layers by their inputs, from the same packed weights.

#pragma once

#include "linear.h"

namespace {

// Most outputs unpacked at once: with 32 inputs, half of a level-2 cache, or for tiles a level-1 cache.
constexpr int64_t kPanel = kHasTiles ? 768 : 8192;

// Most outputs that meet all inputs before the next do.
constexpr int64_t kOutputs = kHasTiles ? 2048 : INT64_MAX;

// Each unpack_ function turns the 32 x 32 weights of output block `block` and inputs from `input` into
// to[16 pairs of outputs][32 inputs], both outputs' bfloat16 in each word.

inline void unpack_bf16(const Linear& call, int64_t block, int64_t input, uint32_t* to) {
  turn(call.w + (block * call.in + input) * kColumns * sizeof(bf16), to);
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

// Adds x W of up to ROWS rows to sums [rows, 32] of the inputs that `panel` was unpacked for.
template <int ROWS>
void add_gradient_of(const bf16* x, int64_t stride, const uint32_t* panel, int64_t depth, float* sums,
                     int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return add_gradient_of<ROWS - 1>(x, stride, panel, depth, sums, rows);
  multiply_into<ROWS, true>((const uint32_t*)x, stride / 2, panel, kColumns, depth, sums, kColumns);
}

// Room of one thread.
struct InputRoom {
  std::vector<uint32_t> panel;  // Of outputs, or of an adapter's ranks: [most at once / 2, 32].
  std::vector<float> sums;      // [blocks of 32 inputs, rows, 32]
};

// An adapter's part of the gradient, dt A, of dt [rows, rank] and A [rank, in]; null for none.
struct ThroughAdapter {
  const bf16* dt = nullptr;
  const bf16* a = nullptr;
  int64_t rank = 0;
};

// Adds x W of all rows to the sums [rows, 32]; x lies `stride` from a row to the next.
inline void add_gradients(const bf16* x, int64_t stride, const uint32_t* panel, int64_t depth, int64_t rows,
                          float* sums) {
  if (takes_tiles(rows, depth)) {
    for (int64_t row = 0, some; row < rows; row += some) {
      some = rows_at_once(rows - row);
      multiply_tiles<true>((const uint32_t*)(x + row * stride), stride / 2, panel, panel + kLanes, kColumns,
                           depth, some, sums + row * kColumns, kColumns);
    }
    return;
  }
  for (int64_t row = 0; row < rows; row += kMaxRows)
    add_gradient_of<kMaxRows>(x + row * stride, stride, panel, depth, sums + row * kColumns,
                              rows - row < kMaxRows ? rows - row : kMaxRows);
}

// Pairs of ranks of A for 32 inputs.
inline void unpack_factors(const ThroughAdapter& adapter, int64_t in, int64_t input, uint32_t* to) {
  for (int64_t j = 0; j < adapter.rank; j += 2)
    for (int64_t c = 0; c < kColumns; ++c) {
      const bf16* pair = adapter.a + j * in + input + c;
      to[j / 2 * kColumns + c] = pair[0] | (uint32_t)pair[in] << 16;
    }
}

// Calls `compute(begin, size)` for even parts of the outputs, none of more than `most`.
template <typename Compute>
void by_outputs(int64_t begin, int64_t size, int64_t most, Compute compute) {
  const int64_t parts = (size - 1) / most + 1, blocks = size / kColumns;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = blocks * part / parts * kColumns, last = blocks * (part + 1) / parts * kColumns;
    compute(begin + first, last - first);
  }
}

// The gradients of one call, by blocks of 32 inputs. In it x is the gradient by the outputs [rows, out], y that
// by the inputs [rows, in].
struct InputGradient {
  Format format;
  const Linear& call;
  const ThroughAdapter& adapter;
  InputRoom& room;

  // Makes sums [end - begin, 32] what the adapter contributes.
  void start(int64_t begin, int64_t end, int64_t input, float* sums) const {
    std::memset(sums, 0, sizeof(float) * (end - begin) * kColumns);
    if (!adapter.dt) return;
    uint32_t* panel = room.panel.data();
    unpack_factors(adapter, call.in, input, panel);
    add_gradients(adapter.dt + begin * adapter.rank, adapter.rank, panel, adapter.rank / 2, end - begin, sums);
  }

  // Adds what `size` outputs from `output` on contribute.
  void add(int64_t begin, int64_t end, int64_t output, int64_t size, int64_t input, float* sums) const {
    uint32_t* panel = room.panel.data();
    for (int64_t i = 0; i < size; i += kColumns)
      unpack(format, call, (output + i) / kColumns, input, panel + i / 2 * kColumns);
    add_gradients(call.x + begin * call.out + output, call.out, panel, size / 2, end - begin, sums);
  }

  void write(int64_t begin, int64_t end, int64_t input, const float* sums) const {
    bf16* y = call.y + begin * call.in + input;
    for (int64_t row = begin; row < end; ++row, y += call.in, sums += kColumns)
      narrow_all(sums, y, kColumns);
  }
};

// The gradient by the inputs of blocks [first, last), of rows [begin, end). So many outputs as stay in a cache
// meet all of the blocks before the next do.
inline void rows_gradient(const InputGradient& gradient, int64_t begin, int64_t end, int64_t first,
                          int64_t last) {
  const int64_t size = (end - begin) * kColumns, out = gradient.call.out;
  grow(gradient.room.sums, (last - first) * size);
  const auto each = [&](auto compute) {
    for (int64_t block = first; block < last; ++block)
      compute(block * kColumns, gradient.room.sums.data() + (block - first) * size);
  };
  each([&](int64_t input, float* sums) { gradient.start(begin, end, input, sums); });
  by_outputs(0, out, kOutputs, [&](int64_t output, int64_t outputs) {
    each([&](int64_t input, float* sums) {
      by_outputs(output, outputs, kPanel, [&](int64_t from, int64_t num) {
        gradient.add(begin, end, from, num, input, sums);
      });
    });
  });
  each([&](int64_t input, float* sums) { gradient.write(begin, end, input, sums); });
}

// The gradient by the inputs of blocks [first, last), of all rows.
inline void gradients_of(Format format, const Linear& call, int64_t first, int64_t last, InputRoom& room,
                         const ThroughAdapter& adapter) {
  const InputGradient gradient{format, call, adapter, room};
  const Tiles tiles(call.rows);
  grow(room.panel, std::max(std::min(call.out, kPanel), adapter.rank) / 2 * kColumns);
  const int64_t together = call.out > kOutputs ? last - first : 1;
  by_rows_in_cache(call.rows, std::min(call.out, kOutputs), [&](int64_t begin, int64_t end) {
    for (int64_t block = first; block < last; block += together)
      rows_gradient(gradient, begin, end, block, block + together);
  });
}

}  // namespace
