// A row of logits at work, and where the most likely of its tokens end.
//
// Nothing is sorted: the value down to which tokens are kept is found by bisection, as how much lies above a
// value is a pass over the row. All sums are taken by one thread in one order, so that what is found depends
// on the row alone.

#pragma once

#include <algorithm>
#include <functional>

#include "common.h"

namespace {

constexpr int64_t kBlock = 512;  // Tokens whose largest value and sum of weights are kept.

// A row at work: whole blocks, the last one filled up with tokens that no draw takes.
struct Row {
  int64_t size, num_blocks;
  int key_shift;  // Low bits of keys that tell no values apart.
  float top;
  std::vector<float> values, weights;  // weights: exp((value - top) / temperature)
  std::vector<float> tops;             // Largest value of each block.
  std::vector<double> sums;            // Of each block's weights.
};

// Keeps the tokens above a value, and of those that have it the first so many.
struct Cut {
  float value;
  double num_ties;
};

INLINE_KERNEL Floats floats_at(const bf16* logits) { return widen(logits); }
INLINE_KERNEL Floats floats_at(const float* logits) { return load(logits); }
inline float float_at(const bf16* logits) { return widened(*logits); }
inline float float_at(const float* logits) { return *logits; }

// Integers in the order of the floats, and back.
inline int64_t key_of(float value, int shift) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits ^ (bits >> 31 & 0x7fffffff)) >> shift;
}
inline float value_of(int64_t key, int shift) {
  const int32_t low = key < 0 ? (1 << shift) - 1 : 0, whole = (int32_t)(key * (1 << shift)) | low;
  const int32_t bits = whole ^ (whole >> 31 & 0x7fffffff);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The calling thread's row, with room for so many logits; the largest values are to be found next.
template <typename T>
Row& row_for(const T*, int64_t size) {
  static thread_local Row row;
  row.size = size;
  row.num_blocks = (size + kBlock - 1) / kBlock;
  row.key_shift = sizeof(T) == sizeof(bf16) ? 16 : 0;
  grow(row.tops, row.num_blocks);
  grow(row.values, row.num_blocks * kBlock);
  grow(row.weights, row.num_blocks * kBlock);
  grow(row.sums, row.num_blocks);
  return row;
}

// Finds the largest of each block and of all; says whether a token can be chosen: none is NaN, and the
// largest is finite.
template <typename T>
KERNEL bool find_tops(Row& row, const T* logits) {
  const Words magnitude = all_words(0x7fffffff);
  Words magnitudes = all_words(0);
  bool has_nan = false;
  row.top = -INFINITY;
  for (int64_t block = 0; block < row.num_blocks; ++block) {
    const int64_t end = std::min((block + 1) * kBlock, row.size);
    Floats tops = all(-INFINITY);
    int64_t i = block * kBlock;
    for (; i + kLanes <= end; i += kLanes) {
      const Floats x = floats_at(logits + i);
      tops = max(tops, x);
      magnitudes = larger(magnitudes, both(bits(x), magnitude));
    }
    float top = highest(tops);
    for (; i < end; ++i) {
      has_nan |= std::isnan(float_at(logits + i));
      top = std::max(top, float_at(logits + i));
    }
    row.tops[block] = top;
    row.top = std::max(row.top, top);
  }
  return !has_nan && largest(magnitudes) <= 0x7f800000 && std::isfinite(row.top);
}

template <typename T>
int64_t first_of_top(const Row& row, const T* logits) {
  int64_t block = 0;
  while (row.tops[block] != row.top) ++block;
  int64_t token = block * kBlock;
  while (float_at(logits + token) != row.top) ++token;
  return token;
}

// Copies a row whose largest values were found.
template <typename T>
KERNEL void read(Row& row, const T* logits) {
  float* values = row.values.data();
  int64_t i = 0;
  for (; i + kLanes <= row.size; i += kLanes) store(values + i, floats_at(logits + i));
  for (; i < row.size; ++i) values[i] = float_at(logits + i);
  std::fill(values + i, values + row.num_blocks * kBlock, -INFINITY);
}

KERNEL void weigh(Row& row, double temperature) {
  // exp of less is no number that is worth drawing; a temperature may be too small to be divided by.
  const Floats least = all(-87.0f), scale = all((float)std::min(1.0 / temperature, 1e30));
  const Floats top = all(row.top);
  for (int64_t block = 0; block < row.num_blocks; ++block) {
    const float* values = row.values.data() + block * kBlock;
    float* weights = row.weights.data() + block * kBlock;
    Floats sum = zeros();
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const Floats x = mul(sub(load(values + i), top), scale);
      const Floats weight = choose(above(x, least), exponential(x), zeros());
      store(weights + i, weight);
      sum = add(sum, weight);
    }
    row.sums[block] = total(sum);
  }
}

// The weights, or with COUNTS the number, of a block's tokens above a value.
template <bool COUNTS>
KERNEL double block_above(const Row& row, int64_t block, float value) {
  constexpr int kSide = 4;  // One sum would wait for itself.
  if (row.tops[block] <= value) return 0.0;
  const float* values = row.values.data() + block * kBlock;
  const float* weights = row.weights.data() + block * kBlock;
  const Floats bound = all(value);
  Floats sums[kSide] = {zeros(), zeros(), zeros(), zeros()};
  for (int64_t i = 0; i < kBlock; i += kSide * kLanes)
    UNROLL
    for (int side = 0; side < kSide; ++side) {
      const int64_t at = i + side * kLanes;
      const Floats each = COUNTS ? all(1.0f) : load(weights + at);
      sums[side] = add(sums[side], choose(above(load(values + at), bound), each, zeros()));
    }
  return total(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

template <bool COUNTS>
KERNEL double all_above(const Row& row, float value) {
  double sum = 0.0;
  for (int64_t block = 0; block < row.num_blocks; ++block)
    sum += block_above<COUNTS>(row, block, value);
  return sum;
}

double weight_of(const Row& row, float value, double temperature) {
  return std::exp(((double)value - row.top) / temperature);
}

// Keeps every token before which, in falling order, less than `limit` lies: of weights, or with COUNTS of
// tokens. `lowest` is a value at or below the last of them.
template <bool COUNTS>
KERNEL Cut cut_at(const Row& row, double limit, float lowest, double temperature) {
  int64_t low = key_of(lowest, row.key_shift), high = key_of(row.top, row.key_shift);
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (all_above<COUNTS>(row, value_of(middle, row.key_shift)) < limit) high = middle;
    else low = middle + 1;
  }
  const float value = value_of(high, row.key_shift);
  const double each = COUNTS ? 1.0 : weight_of(row, value, temperature);
  return {value, std::max(std::ceil((limit - all_above<COUNTS>(row, value)) / each), 1.0)};
}

// A value that at least `num` tokens reach: one in each of as many blocks.
float lowest_of_top(const Row& row, int64_t num) {
  if (num > row.num_blocks) return -INFINITY;
  static thread_local std::vector<float> tops;
  tops.assign(row.tops.begin(), row.tops.begin() + row.num_blocks);
  std::nth_element(tops.begin(), tops.begin() + num - 1, tops.end(), std::greater<float>());
  return tops[num - 1];
}

}  // namespace
