// What a path without tiles has in their place: see amx.h.

#pragma once

#include <cstdint>

namespace {

constexpr bool kHasTiles = false;

constexpr int64_t kCacheBytes = INT64_MAX;  // A block is read from memory, rows are near.

constexpr int64_t kNearBlocks = 1;
constexpr int64_t kTallRows = kMaxRows;
constexpr int64_t kTileWords = 1;

struct Tiles {
  explicit Tiles(int64_t) {}
};

struct HalfTiles {
  HalfTiles() {}
};

inline int64_t rows_at_once(int64_t left) { return left < kMaxRows ? left : kMaxRows; }

enum class Factors { kBf16, kBytes };

// Never called.
template <bool ADDS, Factors FACTORS = Factors::kBf16>
void multiply_tiles(const uint32_t*, int64_t, const uint32_t*, const uint32_t*, int64_t, int64_t, int64_t,
                    float*, int64_t) {}
inline void gather_tiles(const bf16*, int64_t, const bf16* const*, int64_t, int64_t, int64_t, int64_t,
                         float*) {}

}  // namespace
