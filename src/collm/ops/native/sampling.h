// Choosing each row's next token from its logits.
//
// Top-k, top-p and min-p all keep the most likely tokens down to a value. The distribution of what is kept is
// inverted in the order of the vocabulary.

#pragma once

#include "row.h"

namespace {

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

Cut stricter(Cut a, Cut b) {
  if (a.value != b.value) return a.value > b.value ? a : b;
  return {a.value, std::min(a.num_ties, b.num_ties)};
}

KERNEL Cut top_k_of(const Row& row, const Choice& choice) {
  if (choice.top_k == 0 || choice.top_k >= row.size) return {-INFINITY, INFINITY};
  const float lowest = lowest_of_top(row, choice.top_k);
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
    if (std::isfinite(num_left))
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
  Row& row = row_for(logits, size);
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
