// Log-probabilities of a row's token and of its most likely ones.

#pragma once

#include "row.h"

namespace {

// What is asked of one row, and the answer; ops/native/sampling.py has the same fields.
struct Asked {
  int64_t row, token;
  int64_t num_top;       // At most the row's size.
  int64_t* top;          // The most likely, of equally likely ones the first [num_top],
  double* top_logprobs;  // and theirs.
  double logprob;        // The token's.
};

// The `num` tokens that a cut keeps, in falling order.
void list_kept(const Row& row, Cut cut, int64_t num, int64_t* tokens) {
  double num_left = cut.num_ties;
  int64_t found = 0;
  for (int64_t block = 0; block < row.num_blocks; ++block) {
    if (row.tops[block] < cut.value) continue;
    const int64_t end = std::min((block + 1) * kBlock, row.size);
    for (int64_t token = block * kBlock; token < end && found < num; ++token) {
      const float value = row.values[token];
      if (value > cut.value || (value == cut.value && --num_left >= 0.0)) tokens[found++] = token;
    }
  }
  const float* values = row.values.data();
  std::stable_sort(tokens, tokens + num, [=](int64_t a, int64_t b) { return values[a] > values[b]; });
}

template <typename T>
KERNEL void answer(const T* logits, int64_t size, Asked& asked) {
  Row& row = row_for(logits, size);
  find_tops(row, logits);
  read(row, logits);
  weigh(row, 1.0);
  double sum = 0.0;
  for (int64_t block = 0; block < row.num_blocks; ++block) sum += row.sums[block];
  const double log_sum = row.top + std::log(sum);
  asked.logprob = row.values[asked.token] - log_sum;
  if (asked.num_top == 0) return;
  const float lowest = lowest_of_top(row, asked.num_top);
  list_kept(row, cut_at<true>(row, asked.num_top, lowest, 1.0), asked.num_top, asked.top);
  for (int64_t i = 0; i < asked.num_top; ++i)
    asked.top_logprobs[i] = row.values[asked.top[i]] - log_sum;
}

}  // namespace

extern "C" {

// logits [rows, size] of bfloat16, or of floats, without NaN; asked [num].
void EXPORT(log_probabilities)(const void* logits, int has_floats, Asked* asked, int64_t num,
                               int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (num > 1 && num * size > kSmall)
  for (int64_t i = 0; i < num; ++i) {
    const int64_t first = asked[i].row * size;
    if (has_floats) answer((const float*)logits + first, size, asked[i]);
    else answer((const bf16*)logits + first, size, asked[i]);
  }
}

}  // extern "C"
