// Linear layers on packed weights; adapters.h adds adapters to their sums.
//
// Weights are records of 32 outputs each; ops/native/linears.py packs them. Three formats:
//   bfloat16  [in / 2, 32, 2]: pairs of inputs interleaved over the outputs
//   int8      32 float scales, then [in / 4, 32, 4] bytes: weight / scale + 128
//   int4      per group of 32 inputs: 32 scales and 32 least values, bfloat16; then [2, 4, 16] words of
//             4 bytes, for 16 outputs each and 8 inputs: byte j has input j in its low and input 4 + j
//             in its high half, as (weight - least value) / scale

#pragma once

#include <algorithm>

#include "adapters.h"

namespace {

enum Format : int { kBf16, kInt8, kInt4 };

constexpr int64_t kGroup = 32;         // Inputs that share a scale: of int4 weights, and of what they meet.
constexpr int64_t kGroupBytes = 640;   // Of a record of int4 weights.
constexpr int64_t kScaleBytes = 128;   // Of an int8 record's scales.

// What one call of linear computes; shapes as in its declaration.
struct Linear {
  const bf16* x;
  const uint8_t* w;
  const bf16* bias;
  bf16* y;
  int64_t rows, in, out;
  const bf16* residual;  // Added to y [rows, out], which may be the same; or null.
};

// The call's inputs as signed bytes: x = scale * byte. For int8 weights a row has one scale, for int4
// weights one per group of inputs. The rows of a tile of vectors lie interleaved, so that its addresses are one
// pointer and constants: [in / 4, rows of the tile, 4] bytes, [groups, rows of the tile] scales. Those that meet
// tile registers lie one after another.
struct Bytes {
  int8_t* bytes;
  float* scales;
  float* sums;  // Of what shares a scale: for int8 weights of the bytes, for int4 weights of the inputs.
  int64_t groups;
};

// Adds bias, adapters and residual to a tile's sums of 32 columns, and writes them.
template <int ROWS>
INLINE_KERNEL void finish(const Linear& call, const Adapters* adapters, int64_t row, int64_t column,
                          Floats* low, Floats* high) {
  if (adapters) add_adapters<ROWS>(*adapters, call.out, row, column, low, high);
  UNROLL
  for (int r = 0; r < ROWS; ++r) {
    if (call.bias) {
      low[r] = add(low[r], widen(call.bias + column));
      high[r] = add(high[r], widen(call.bias + column + kLanes));
    }
    if (call.residual) {
      const bf16* residual = call.residual + (row + r) * call.out + column;
      low[r] = add(low[r], widen(residual)), high[r] = add(high[r], widen(residual + kLanes));
    }
    bf16* y = call.y + (row + r) * call.out + column;
    narrow(y, low[r]);
    narrow(y + kLanes, high[r]);
  }
}

// The weights of the next block, of `block_bytes`, for a tile that takes `steps`: each of a block's tiles
// asks for its part. Else the first tile of every block would wait for memory, which rests while others
// compute. With one tile a block the CPU foresees better by itself, and asking would slow it down.
inline Ahead next_block(const Linear& call, int64_t row, int64_t block, int64_t block_bytes,
                        int64_t steps) {
  const int64_t tiles = (call.rows + kMaxRows - 1) / kMaxRows;
  if (tiles == 1) return {call.w, 0};
  const int64_t step = block_bytes / (tiles * steps);
  return {call.w + (block + 1) * block_bytes + row / kMaxRows * steps * step, step};
}

// One tile: ROWS rows times the 32 columns of packed block `block`.
template <int ROWS>
KERNEL void tile_bf16(const Linear& call, const Bytes&, const Adapters* adapters, int64_t row,
                      int64_t block) {
  const int64_t depth = call.in / 2;
  Floats low[ROWS], high[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; ++r) low[r] = high[r] = zeros();
  multiply<ROWS>((const uint32_t*)call.x + row * depth, depth,
                 (const uint32_t*)call.w + block * depth * kColumns,
                 (const uint32_t*)call.w + block * depth * kColumns + kLanes, kColumns, depth, low, high,
                 next_block(call, row, block, depth * kColumns * sizeof(uint32_t), depth));
  finish<ROWS>(call, adapters, row, block * kColumns, low, high);
}

template <int ROWS>
KERNEL void tile_int8(const Linear& call, const Bytes& x, const Adapters* adapters, int64_t row,
                      int64_t block) {
  constexpr int kSide = kSums / 2 / ROWS < 1 ? 1 : kSums / 2 / ROWS > 4 ? 4 : kSums / 2 / ROWS;
  const int64_t depth = call.in / 4;
  const uint8_t* record = call.w + block * (kScaleBytes + call.in * kColumns);
  const auto* scales = (const float*)record;
  const auto* w = (const uint32_t*)(record + kScaleBytes);
  const auto* bytes = (const int32_t*)(x.bytes + row * call.in);
  Ahead ahead = next_block(call, row, block, kScaleBytes + call.in * kColumns, depth);
  Words low[ROWS][kSide], high[ROWS][kSide];
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int d = 0; d < kSide; ++d) low[r][d] = high[r][d] = all_words(0);
  int64_t k = 0;
  for (; k + kSide <= depth; k += kSide)
    UNROLL
    for (int d = 0; d < kSide; ++d) {
      ahead.ask();
      const Words w_low = load_words(w + (k + d) * kColumns);
      const Words w_high = load_words(w + (k + d) * kColumns + kLanes);
      UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const Words four = all_words(bytes[(k + d) * ROWS + r]);
        low[r][d] = dot4(low[r][d], w_low, four);
        high[r][d] = dot4(high[r][d], w_high, four);
      }
    }
  // in is a multiple of 32, so nothing is left of k.
  Floats result_low[ROWS], result_high[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; ++r) {
    // Weights are stored 128 too large, as dot4 wants them unsigned.
    const Words excess = all_words(128 * (int32_t)x.sums[row + r]);
    Words sum_low = minus(low[r][0], excess), sum_high = minus(high[r][0], excess);
    UNROLL
    for (int d = 1; d < kSide; ++d)
      sum_low = plus(sum_low, low[r][d]), sum_high = plus(sum_high, high[r][d]);
    const Floats scale = all(x.scales[row + r]);
    result_low[r] = mul(mul(to_floats(sum_low), scale), load(scales));
    result_high[r] = mul(mul(to_floats(sum_high), scale), load(scales + kLanes));
  }
  finish<ROWS>(call, adapters, row, block * kColumns, result_low, result_high);
}

template <int ROWS>
KERNEL void tile_int4(const Linear& call, const Bytes& x, const Adapters* adapters, int64_t row,
                      int64_t block) {
  const uint8_t* record = call.w + block * x.groups * kGroupBytes;
  const auto* bytes = (const int32_t*)(x.bytes + row * call.in);
  const float *scales = x.scales + row * x.groups, *totals = x.sums + row * x.groups;
  const Words nibble = all_words(0x0f0f0f0f);
  Ahead ahead = next_block(call, row, block, x.groups * kGroupBytes, 8 * x.groups);
  Floats sums[2][ROWS];
  UNROLL
  for (int r = 0; r < ROWS; ++r) sums[0][r] = sums[1][r] = zeros();
  for (int64_t g = 0; g < x.groups; ++g) {
    for (int half = 0; half < 2; ++half) {
      // Both halves meet the same bytes. To keep them, the compiler would spill all that it has.
      asm volatile("" ::: "memory");
      const auto* w = (const uint32_t*)(record + 128 + half * 256);
      Words whole[ROWS];
      UNROLL
      for (int r = 0; r < ROWS; ++r) whole[r] = all_words(0);
      for (int k = 0; k < 4; ++k) {
        ahead.ask();
        const Words packed = load_words(w + k * kLanes);
        const Words first = both(packed, nibble), second = both(right<4>(packed), nibble);
        UNROLL
        for (int r = 0; r < ROWS; ++r)
          whole[r] = dot4(whole[r], first, all_words(bytes[2 * k * ROWS + r]));
        UNROLL
        for (int r = 0; r < ROWS; ++r)
          whole[r] = dot4(whole[r], second, all_words(bytes[(2 * k + 1) * ROWS + r]));
      }
      const Floats scale = widen((const bf16*)record + half * kLanes);
      const Floats least = widen((const bf16*)record + kColumns + half * kLanes);
      UNROLL
      for (int r = 0; r < ROWS; ++r) {
        sums[half][r] = fma(least, all(totals[r]), sums[half][r]);
        sums[half][r] = fma(to_floats(whole[r]), mul(scale, all(scales[r])), sums[half][r]);
      }
    }
    record += kGroupBytes, bytes += 8 * ROWS, scales += ROWS, totals += ROWS;
  }
  finish<ROWS>(call, adapters, row, block * kColumns, sums[0], sums[1]);
}

template <int ROWS>
KERNEL void tile_of(Format format, const Linear& call, const Bytes& x, const Adapters* adapters,
                    int64_t row, int64_t block, int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return tile_of<ROWS - 1>(format, call, x, adapters, row, block, rows);
  if (format == kInt8) return tile_int8<ROWS>(call, x, adapters, row, block);
  if (format == kInt4) return tile_int4<ROWS>(call, x, adapters, row, block);
  tile_bf16<ROWS>(call, x, adapters, row, block);
}

constexpr int64_t kFewestForTiles = 2;  // Rows from which on tiles are faster than vectors.
constexpr int64_t kRowGroup = 32;       // Rows are cut between so many.
constexpr int64_t kFewestInCache = 64;  // Rows that meet a block at least, however wide they are.

// Whether so many rows of so many words are multiplied by tile registers, which take whole ones.
inline bool takes_tiles(int64_t rows, int64_t words) {
  return kHasTiles && rows >= kFewestForTiles && words % kTileWords == 0;
}

inline bool takes_tiles(Format format, const Linear& call) {
  return format == kBf16 ? takes_tiles(call.rows, call.in / 2)
                         : format == kInt8 && takes_tiles(call.rows, call.in / 4);
}

// Finishes up to ROWS rows whose sums [rows, 32] are in memory.
template <int ROWS>
KERNEL void finish_sums(const Linear& call, const Adapters* adapters, int64_t row, int64_t column,
                        const float* sums, int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return finish_sums<ROWS - 1>(call, adapters, row, column, sums, rows);
  Floats low[ROWS], high[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    low[r] = load(sums + r * kColumns), high[r] = load(sums + r * kColumns + kLanes);
  finish<ROWS>(call, adapters, row, column, low, high);
}

// Sums of bytes [rows, 32] as floats, in place.
KERNEL void scale_sums(const Bytes& x, const float* scales, int64_t row, int64_t rows, float* sums) {
  for (int64_t r = row; r < row + rows; ++r)
    for (int64_t half = 0; half < 2; ++half, sums += kLanes) {
      // Weights are stored 128 too large.
      const Words whole = minus(load_words(sums), all_words(128 * (int32_t)x.sums[r]));
      store(sums, mul(mul(to_floats(whole), all(x.scales[r])), load(scales + half * kLanes)));
    }
}

// Computes rows of a block by tile registers, as many as are taken at once.
inline void tile_rows(Format format, const Linear& call, const Bytes& x, const Adapters* adapters,
                      int64_t row, int64_t rows, int64_t block) {
  alignas(64) float sums[kRowGroup * kColumns];
  if (format == kBf16) {
    const int64_t depth = call.in / 2;
    const auto* w = (const uint32_t*)call.w + block * depth * kColumns;
    multiply_tiles<false>((const uint32_t*)call.x + row * depth, depth, w, w + kLanes, kColumns, depth, rows,
                          sums, kColumns);
  } else {
    const int64_t depth = call.in / 4;
    const uint8_t* record = call.w + block * (kScaleBytes + call.in * kColumns);
    const auto* w = (const uint32_t*)(record + kScaleBytes);
    multiply_tiles<false, Factors::kBytes>((const uint32_t*)x.bytes + row * depth, depth, w, w + kLanes,
                                           kColumns, depth, rows, sums, kColumns);
    scale_sums(x, (const float*)record, row, rows, sums);
  }
  for (int64_t r = 0; r < rows; r += kMaxRows)
    finish_sums<kMaxRows>(call, adapters, row + r, block * kColumns, sums + r * kColumns,
                          rows - r < kMaxRows ? rows - r : kMaxRows);
}

// Computes rows of a block, from `row` to `end` at most, and returns how many: those that are best taken at
// once.
inline int64_t some_rows(Format format, const Linear& call, const Bytes& x, const Adapters* adapters,
                         int64_t row, int64_t end, int64_t block) {
  const int64_t left = end - row;
  if (takes_tiles(format, call)) {
    const int64_t rows = rows_at_once(left);
    tile_rows(format, call, x, adapters, row, rows, block);
    return rows;
  }
  const int64_t rows = left < kMaxRows ? left : kMaxRows;
  tile_of<kMaxRows>(format, call, x, adapters, row, block, rows);
  return rows;
}

// Calls `compute(begin, end)` for all rows, so many at once as stay in a cache with `width` elements each.
template <typename Compute>
void by_rows_in_cache(int64_t rows, int64_t width, Compute compute) {
  const int64_t most = std::max(kCacheBytes / (int64_t)sizeof(bf16) / width, kFewestInCache);
  const int64_t parts = (rows - 1) / most + 1, groups = (rows - 1) / kRowGroup + 1;
  for (int64_t part = 0; part < parts; ++part)
    compute(groups * part / parts * kRowGroup, std::min(groups * (part + 1) / parts * kRowGroup, rows));
}

// Computes all rows of blocks [first, last).
inline void all_rows(Format format, const Linear& call, const Bytes& x, const Adapters* adapters,
                     int64_t first, int64_t last) {
  const Tiles tiles(call.rows);
  by_rows_in_cache(call.rows, call.in, [&](int64_t begin, int64_t end) {
    for (int64_t from = first; from < last; from += kNearBlocks)
      for (int64_t row = begin, some; row < end; row += some)
        for (int64_t block = from; block < last && block < from + kNearBlocks; ++block)
          some = some_rows(format, call, x, adapters, row, end, block);
  });
}

// Rounds one row to bytes. NaN or an infinity makes its scale no number, and
// with it all that is computed from it: the largest is found as an integer, and theirs are above all others.
KERNEL void round_row(Format format, const Linear& call, const Bytes& to, int64_t row) {
  const int64_t size = call.in / to.groups, together = takes_tiles(format, call) ? 1 : kMaxRows;
  const int64_t first = row / together * together, place = row - first;
  const int64_t stride = call.rows - first < together ? call.rows - first : together;
  const bf16* x = call.x + row * call.in;
  auto* words = (int32_t*)(to.bytes + first * call.in) + place;
  for (int64_t g = 0; g < to.groups; ++g) {
    Words top = all_words(0);
    for (int64_t i = 0; i < size; i += kLanes)
      top = larger(top, both(bits(widen(x + i)), all_words(0x7fffffff)));
    const int32_t word = largest(top);
    float magnitude;
    std::memcpy(&magnitude, &word, sizeof magnitude);
    const Floats inverse = all(magnitude > 0 ? 127.0f / magnitude : 0.0f);
    Words sum = all_words(0);
    for (int64_t i = 0; i < size; i += kLanes, x += kLanes, words += 4 * stride) {
      const Words rounded = to_words(mul(widen(x), inverse));
      int32_t fours[4];
      store_bytes((int8_t*)fours, rounded);
      for (int64_t k = 0; k < 4; ++k) words[k * stride] = fours[k];
      sum = plus(sum, rounded);
    }
    const float scale = magnitude / 127.0f;
    const int64_t at = first * to.groups + g * stride + place;
    to.scales[at] = scale;
    to.sums[at] = (float)total(sum) * (format == kInt4 ? scale : 1.0f);
  }
}

}  // namespace
