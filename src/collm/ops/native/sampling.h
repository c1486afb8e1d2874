// Choosing each row's next token from its logits.
//
// Nothing is sorted. Top-k, top-p and min-p all keep the most likely tokens down to a value, which is found
// by bisection: how much lies above a value is a pass over the row. The distribution of what is kept is then
// inverted in the order of the vocabulary. All sums are taken by one thread in one order, so that a token
// depends on its own row alone.

#pragma once

#include <algorithm>
#include <functional>

#include "common.h"

namespace {

constexpr int64_t kBlock = 512;  // Tokens whose largest value and sum of weights are kept.

// How one row's token is chosen; ops/native/sampling.py has the same fields.
struct Choice {
  double draw;         // In [0, 1).
  double temperature;  // Zero takes the most likely token.
  double top_p, min_p;
  int64_t top_k;  // Zero is none.
  double repetition, presence, frequency;
  const int32_t* known;  // Tokens of the prompt, then of the output; only for penalties.
  int64_t num_prompt, num_known;
  const int32_t* barred;
  int64_t num_barred;
};

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

template <typename T>
KERNEL void read(Row& row, const T* logits) {
  grow(row.values, row.num_blocks * kBlock);
  float* values = row.values.data();
  int64_t i = 0;
  for (; i + kLanes <= row.size; i += kLanes) store(values + i, floats_at(logits + i));
  for (; i < row.size; ++i) values[i] = float_at(logits + i);
  std::fill(values + i, values + row.num_blocks * kBlock, -INFINITY);
}

// Applies penalties, then the tokens that may not come; says whether one is left.
bool adjust(Row& row, const Choice& choice) {
  static thread_local std::vector<int32_t> counts;  // Zeros between calls.
  grow(counts, row.size);
  float* values = row.values.data();
  if (choice.repetition != 1.0) {
    const float penalty = (float)choice.repetition;
    for (int64_t i = 0; i < choice.num_known; ++i) {
      const int32_t token = choice.known[i];
      if (counts[token]++ > 0) continue;
      values[token] = values[token] > 0.0f ? values[token] / penalty : values[token] * penalty;
    }
    for (int64_t i = 0; i < choice.num_known; ++i) counts[choice.known[i]] = 0;
  }
  for (int64_t i = choice.num_prompt; i < choice.num_known; ++i) ++counts[choice.known[i]];
  for (int64_t i = choice.num_prompt; i < choice.num_known; ++i) {
    const int32_t token = choice.known[i];
    if (counts[token] > 0)
      values[token] -= (float)(choice.presence + choice.frequency * counts[token]);
    counts[token] = 0;
  }
  for (int64_t i = 0; i < choice.num_barred; ++i)  // A checkpoint may name ends that it has no row for.
    if (choice.barred[i] < row.size) values[choice.barred[i]] = -INFINITY;
  row.key_shift = 0;
  return find_tops(row, values);
}

KERNEL void weigh(Row& row, double temperature) {
  grow(row.weights, row.num_blocks * kBlock);
  grow(row.sums, row.num_blocks);
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

Cut stricter(Cut a, Cut b) {
  if (a.value != b.value) return a.value > b.value ? a : b;
  return {a.value, std::min(a.num_ties, b.num_ties)};
}

// Each of as many blocks has a token at or above the value.
float lowest_of_top_k(const Row& row, int64_t top_k) {
  if (top_k > row.num_blocks) return -INFINITY;
  static thread_local std::vector<float> tops;
  tops.assign(row.tops.begin(), row.tops.begin() + row.num_blocks);
  std::nth_element(tops.begin(), tops.begin() + top_k - 1, tops.end(), std::greater<float>());
  return tops[top_k - 1];
}

KERNEL Cut top_k_of(const Row& row, const Choice& choice) {
  if (choice.top_k == 0 || choice.top_k >= row.size) return {-INFINITY, INFINITY};
  const float lowest = lowest_of_top_k(row, choice.top_k);
  return cut_at<true>(row, choice.top_k, lowest, choice.temperature);
}

KERNEL Cut top_p_of(const Row& row, const Choice& choice, Cut top_k) {
  double sum = all_above<false>(row, top_k.value);
  if (std::isfinite(top_k.value))
    sum += top_k.num_ties * weight_of(row, top_k.value, choice.temperature);
  // All tokens of half the weight that is to be cut, shared out among them, would not make it up.
  const double least = 0.5 * (1.0 - choice.top_p) * sum / row.size;
  const float lowest = (float)(row.top + choice.temperature * std::log(least));
  return cut_at<false>(row, choice.top_p * sum, lowest, choice.temperature);
}

// What top-k, top-p of what that leaves, and min-p keep.
KERNEL Cut cut_of(const Row& row, const Choice& choice) {
  Cut cut = top_k_of(row, choice);
  if (choice.top_p < 1.0) cut = stricter(cut, top_p_of(row, choice, cut));
  if (choice.min_p > 0.0)
    cut = stricter(cut, {(float)(row.top + choice.temperature * std::log(choice.min_p)), INFINITY});
  return cut;
}

// Gives no weight to a block's tokens below a value, nor, without TIES, to those that have it.
template <bool TIES>
KERNEL double keep_block(Row& row, int64_t block, float value) {
  const float* values = row.values.data() + block * kBlock;
  float* weights = row.weights.data() + block * kBlock;
  const Floats bound = all(value);
  Floats sum = zeros();
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const Floats x = load(values + i), weight = load(weights + i);
    const Floats kept = TIES ? choose(above(bound, x), zeros(), weight)
                             : choose(above(x, bound), weight, zeros());
    store(weights + i, kept);
    sum = add(sum, kept);
  }
  return total(sum);
}

KERNEL void keep(Row& row, Cut cut) {
  double num_left = cut.num_ties;
  for (int64_t block = 0; block < row.num_blocks; ++block) {
    row.sums[block] = 0.0;
    if (row.tops[block] < cut.value) continue;
    if (num_left <= 0.0) {
      row.sums[block] = keep_block<false>(row, block, cut.value);
      continue;
    }
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i)
      if (row.values[i] == cut.value && --num_left < 0.0) row.weights[i] = 0.0f;
    row.sums[block] = keep_block<true>(row, block, cut.value);
  }
}

// Inverts the distribution of the weights in the order of the tokens.
int64_t drawn(const Row& row, double draw) {
  double sum = 0.0;
  for (int64_t block = 0; block < row.num_blocks; ++block) sum += row.sums[block];
  double left = draw * sum;
  int64_t found = 0;  // The last block with any weight, if rounding leads past the end.
  for (int64_t block = 0; block < row.num_blocks; ++block) {
    if (row.sums[block] > 0.0) found = block;
    if (left < row.sums[block]) break;
    left -= row.sums[block];
  }
  int64_t token = found * kBlock;
  for (int64_t i = found * kBlock; i < (found + 1) * kBlock; ++i) {
    if (row.weights[i] > 0.0f) token = i;
    if (left < row.weights[i]) break;
    left -= row.weights[i];
  }
  return token;
}

// A row's token, or -1 if it has none.
template <typename T>
KERNEL int64_t chosen_of(const T* logits, int64_t size, const Choice& choice) {
  static thread_local Row row;
  row.size = size;
  row.num_blocks = (size + kBlock - 1) / kBlock;
  row.key_shift = sizeof(T) == sizeof(bf16) ? 16 : 0;
  grow(row.tops, row.num_blocks);
  const bool adjusts = choice.num_known > 0 || choice.num_barred > 0;
  if (!find_tops(row, logits)) return -1;
  if (choice.temperature == 0.0 && !adjusts) return first_of_top(row, logits);
  read(row, logits);
  if (adjusts && !adjust(row, choice)) return -1;
  if (choice.temperature == 0.0) return first_of_top(row, row.values.data());
  weigh(row, choice.temperature);
  if (choice.top_k > 0 || choice.top_p < 1.0 || choice.min_p > 0.0) keep(row, cut_of(row, choice));
  return drawn(row, choice.draw);
}

}  // namespace

extern "C" {

// logits [rows, size] of bfloat16, or of floats; tokens [rows]. Known tokens are less than size.
void EXPORT(sample)(const void* logits, int has_floats, const Choice* choices, int64_t* tokens,
                    int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (rows > 1 && rows * size > kSmall)
  for (int64_t row = 0; row < rows; ++row)
    tokens[row] = has_floats
                      ? chosen_of((const float*)logits + row * size, size, choices[row])
                      : chosen_of((const bf16*)logits + row * size, size, choices[row]);
}

}  // extern "C"
