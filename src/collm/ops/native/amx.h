// Tiles for CPUs with AMX-BF16 and AMX-INT8, beside the vectors of avx512.h.
//
// A register has up to 16 rows of 64 bytes. Its product takes as long for one row as for 16, so vectors
// stay better for the fewest. Packed weights are as the second factor has to be: pairs of inputs
// interleaved over the outputs.

#pragma once

#include "avx512.h"

#undef EXPORT
#undef KERNEL
#define EXPORT(name) collm_amx_##name
#define KERNEL                                                                                     \
  __attribute__((target(                                                                           \
      "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,fma,amx-tile,amx-bf16,amx-int8")))

namespace {

constexpr bool kHasTiles = true;
constexpr int64_t kTallRows = 16;   // Of a register.
constexpr int64_t kTileWords = 16;  // In a row of a register.

// The tile registers of this thread while this lives. Whoever computes next (torch has tiles as well) makes
// registers of its own.
class Tiles {
 public:
  // For calls of so many rows: 0 to 3 are sums, 4 and 5 have rows of a first factor, 6 and 7 pairs of a
  // second.
  explicit Tiles(int64_t rows) : Tiles(rows && rows < kTallRows ? rows : kTallRows, 64) {}

  ~Tiles() { release(); }
  Tiles(const Tiles&) = delete;

 protected:
  KERNEL Tiles(int64_t rows, int64_t factor_bytes) {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, zeros[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) {
      shape.row_bytes[i] = i == 4 || i == 5 ? factor_bytes : 64;
      shape.rows[i] = i < 6 ? rows : factor_bytes / sizeof(uint32_t);
    }
    asm volatile("ldtilecfg %0" : : "m"(shape));  // GCC's own says of one word alone that it is read.
  }

 private:
  KERNEL static void release() { _tile_release(); }
};

// The same for factors of 8 pairs, as a run of keys has them.
struct HalfTiles : Tiles {
  HalfTiles() : Tiles(kTallRows, 32) {}
};

// Bytes of a first factor that stay in a level-2 cache while the second is read.
constexpr int64_t kCacheBytes = 5 << 18;

// Blocks that rows meet one after another while both stay near: what is written lies together then.
constexpr int64_t kNearBlocks = 8;

// Rows to multiply at once when `left` are left: 16 at least if that is what there were, and 32 at most.
inline int64_t rows_at_once(int64_t left) {
  if (left <= 2 * kTallRows) return left;
  return left < 3 * kTallRows ? kTallRows : 2 * kTallRows;
}

// What a tile product multiplies: pairs of bfloat16, summed as floats, or four bytes, those of the first factor
// signed, those of the second not, summed as integers.
enum class Factors { kBf16, kBytes };

#define TILE_PRODUCT(sum, x, w)                                                      \
  do {                                                                               \
    if constexpr (FACTORS == Factors::kBytes) _tile_dpbsud(sum, x, w);               \
    else _tile_dpbf16ps(sum, x, w);                                                  \
  } while (false)

// sums[rows, 2 x 16], of so many rows at once, become x W, or with ADDS gain it. x is `stride` words from a row
// to the next, sums are `sums_step`; w and w_beside [depth, 16] are words of factors, of a multiple of 16, and
// `w_step` from one to the next. Rows that two registers share are computed twice, alike.
template <bool ADDS, Factors FACTORS = Factors::kBf16>
KERNEL __attribute__((noinline)) void multiply_tiles(const uint32_t* x, int64_t stride, const uint32_t* w,
                                                     const uint32_t* w_beside, int64_t w_step,
                                                     int64_t depth, int64_t rows, float* sums,
                                                     int64_t sums_step) {
  asm volatile("" ::: "memory");  // What is loaded below was written: the compiler does not know.
  const int64_t beside = rows > kTallRows ? rows - kTallRows : 0;
  const uint32_t* x_beside = x + beside * stride;
  float* sums_beside = sums + beside * sums_step;
  const int64_t w_next = w_step * kTileWords;
  stride *= sizeof(uint32_t), w_step *= sizeof(uint32_t), sums_step *= sizeof(float);
  if constexpr (ADDS) {
    _tile_loadd(0, sums, sums_step);
    _tile_loadd(1, sums + kTallRows, sums_step);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  if (!beside) {
    for (int64_t k = 0; k < depth; k += kTileWords, w += w_next, w_beside += w_next) {
      _tile_loadd(4, x + k, stride);
      _tile_loadd(6, w, w_step);
      _tile_loadd(7, w_beside, w_step);
      TILE_PRODUCT(0, 4, 6);
      TILE_PRODUCT(1, 4, 7);
    }
  } else {
    if constexpr (ADDS) {
      _tile_loadd(2, sums_beside, sums_step);
      _tile_loadd(3, sums_beside + kTallRows, sums_step);
    } else {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k += kTileWords, w += w_next, w_beside += w_next) {
      _tile_loadd(4, x + k, stride);
      _tile_loadd(6, w, w_step);
      _tile_loadd(7, w_beside, w_step);
      _tile_loadd(5, x_beside + k, stride);
      TILE_PRODUCT(0, 4, 6);
      TILE_PRODUCT(1, 4, 7);
      TILE_PRODUCT(2, 5, 6);
      TILE_PRODUCT(3, 5, 7);
    }
    _tile_stored(2, sums_beside, sums_step);
    _tile_stored(3, sums_beside + kTallRows, sums_step);
  }
  _tile_stored(0, sums, sums_step);
  _tile_stored(1, sums + kTallRows, sums_step);
}

#undef TILE_PRODUCT

// sums[16, 32] of the values [8 pairs, dim] from values[i] + offset on, weighed by 16 rows of weights, 16 of
// them for each i in [begin, end). Needs HalfTiles.
KERNEL __attribute__((noinline)) inline void gather_tiles(const bf16* weights, int64_t width,
                                                          const bf16* const* values, int64_t offset,
                                                          int64_t begin, int64_t end, int64_t dim,
                                                          float* sums) {
  asm volatile("" ::: "memory");
  const int64_t width_bytes = width * sizeof(bf16), step = dim * sizeof(uint32_t);
  constexpr int64_t kStep = 2 * kTallRows * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t i = begin; i < end; ++i) {
    const auto* pairs = (const uint32_t*)(values[i] + offset);
    _tile_loadd(4, weights + i * kTallRows, width_bytes);
    _tile_loadd(6, pairs, step);
    _tile_loadd(7, pairs + kTallRows, step);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, sums, kStep);
  _tile_stored(1, sums + kTallRows, kStep);
}

}  // namespace
