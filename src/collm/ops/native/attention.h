// Attention over paged keys and values where they lie.

#pragma once

#include "common.h"

namespace {

// What one call of decode_attention computes; shapes as in its declaration.
struct Decode {
  const bf16* q;
  int64_t q_stride;
  const bf16* cache;
  const int64_t* blocks;
  int64_t max_blocks;
  const int64_t* lengths;
  bf16* out;
  int64_t heads, kv_heads, head_dim, block_size, window;
  float scale;
};

// Room of one thread.
struct Scratch {
  std::vector<const bf16*> keys;     // Where a row's keys lie.
  std::vector<uint32_t> queries;     // Of a tile's rows, side by side.
  std::vector<float> scores;         // Of a row's heads, or of a tile's rows.
  std::vector<bf16> weights;         // The same as weights.
};

constexpr int kHeads = 4;   // Query heads of one key head that are attended together.
constexpr int kAhead = 12;  // Keys whose memory is asked for while one is computed.

// Asks for a key and its value: they lie a token apart, too far for the CPU to foresee.
inline void ask_for(const bf16* key, int64_t dim, int64_t to_value) {
  for (int64_t d = 0; d < dim; d += kColumns)  // A cache line of 64 bytes.
    __builtin_prefetch(key + d), __builtin_prefetch(key + to_value + d);
}

// Scores of HEADS query heads for keys [start, length), `stride` from a head to the next.
template <int HEADS>
KERNEL void score(const Decode& call, const bf16* q, const bf16* const* keys, int64_t start,
                  int64_t length, float* scores, int64_t stride) {
  const int64_t dim = call.head_dim, to_value = call.kv_heads * dim;
  for (int64_t p = start; p < length; ++p) {
    if (p + kAhead < length) ask_for(keys[p + kAhead], dim, to_value);
    Floats sums[HEADS];
    UNROLL
    for (int g = 0; g < HEADS; ++g) sums[g] = zeros();
    for (int64_t d = 0; d < dim; d += kColumns) {
      const Words key = load_words(keys[p] + d);
      UNROLL
      for (int g = 0; g < HEADS; ++g) sums[g] = dot2(sums[g], load_words(q + g * dim + d), key);
    }
    UNROLL
    for (int g = 0; g < HEADS; ++g) scores[g * stride + p] = total(sums[g]) * call.scale;
  }
}

// Turns scores [start, length) into weights that are not divided by their sum; returns its inverse.
KERNEL float weigh(float* scores, int64_t start, int64_t length) {
  Floats tops = all(-INFINITY);
  for (int64_t p = start; p < length; p += kLanes) {
    const Mask some = lanes(0, length - p);
    tops = max(tops, choose(some, load_some(some, scores + p), all(-INFINITY)));
  }
  const Floats top = all(highest(tops));
  Floats sum = zeros();
  for (int64_t p = start; p < length; p += kLanes) {
    const Mask some = lanes(0, length - p);
    const Floats weight = exponential(sub(load_some(some, scores + p), top));
    sum = add(sum, choose(some, weight, zeros()));
    store_some(some, scores + p, weight);
  }
  return 1.0f / total(sum);
}

// Outputs of HEADS query heads: sums of values [start, length) by weight, times each head's share.
template <int HEADS>
KERNEL void gather(const Decode& call, const bf16* const* keys, int64_t start, int64_t length,
                   const float* weights, int64_t stride, const float* shares, bf16* out) {
  const int64_t dim = call.head_dim, to_value = call.kv_heads * dim;
  for (int64_t d = 0; d < dim; d += kColumns) {
    Floats low[HEADS], high[HEADS];
    UNROLL
    for (int g = 0; g < HEADS; ++g) low[g] = high[g] = zeros();
    for (int64_t p = start; p < length; ++p) {
      const bf16* v = keys[p] + to_value + d;
      const Floats v_low = widen(v), v_high = widen(v + kLanes);
      UNROLL
      for (int g = 0; g < HEADS; ++g) {
        const Floats weight = all(weights[g * stride + p]);
        low[g] = fma(weight, v_low, low[g]), high[g] = fma(weight, v_high, high[g]);
      }
    }
    UNROLL
    for (int g = 0; g < HEADS; ++g) {
      narrow(out + g * dim + d, mul(low[g], all(shares[g])));
      narrow(out + g * dim + d + kLanes, mul(high[g], all(shares[g])));
    }
  }
}

template <int HEADS>
void attend_heads(const Decode& call, const bf16* q, const Scratch& scratch, int64_t start,
                  int64_t length, float* scores, bf16* out, int64_t heads) {
  if constexpr (HEADS > 1)
    if (heads < HEADS)
      return attend_heads<HEADS - 1>(call, q, scratch, start, length, scores, out, heads);
  float shares[HEADS];
  score<HEADS>(call, q, scratch.keys.data(), start, length, scores, length);
  for (int g = 0; g < HEADS; ++g) shares[g] = weigh(scores + g * length, start, length);
  gather<HEADS>(call, scratch.keys.data(), start, length, scores, length, shares, out);
}

// Attends the query heads of one row that share key head `kv_head`.
inline void attend(const Decode& call, int64_t row, int64_t kv_head, Scratch& scratch) {
  const int64_t dim = call.head_dim, group = call.heads / call.kv_heads;
  const int64_t length = call.lengths[row], token_stride = 2 * call.kv_heads * dim;
  const int64_t start = call.window > 0 && length > call.window ? length - call.window : 0;
  grow(scratch.keys, length);
  grow(scratch.scores, kHeads * length);
  const int64_t* table = call.blocks + row * call.max_blocks;
  for (int64_t block = start / call.block_size; block * call.block_size < length; ++block) {
    const bf16* key = call.cache + table[block] * call.block_size * token_stride + kv_head * dim;
    const int64_t first = block * call.block_size;
    for (int64_t p = first; p < first + call.block_size && p < length; ++p, key += token_stride)
      scratch.keys[p] = key;
  }
  const bf16* q = call.q + row * call.q_stride + kv_head * group * dim;
  bf16* out = call.out + (row * call.heads + kv_head * group) * dim;
  for (int64_t g = 0; g < group; g += kHeads)
    attend_heads<kHeads>(call, q + g * dim, scratch, start, length, scratch.scores.data(),
                         out + g * dim, group - g < kHeads ? group - g : kHeads);
}

// What one call of prefill_attention computes; shapes as in its declaration.
struct Prefill {
  const bf16* q;
  int64_t q_stride;
  const bf16* cache;
  const int64_t* blocks;
  bf16* out;
  int64_t rows, context, heads, kv_heads, head_dim, block_size, window;
  float scale;
  float* log_sums = nullptr;  // For training: of each row's exponentials; see training_attention.h.
  int64_t log_sums_stride = 0;

  int64_t group() const { return heads / kv_heads; }
  int64_t length() const { return context + rows; }
  int64_t panels() const { return (length() + kColumns - 1) / kColumns; }
  int64_t tiles() const { return (rows * group() + kMaxRows - 1) / kMaxRows; }  // Of one key head.
  // Elements of one key head's packed keys; its values take as many.
  int64_t packed_size() const { return panels() * kColumns * head_dim; }
  int64_t room() const { return 2 * kv_heads * packed_size(); }
};

// Packs 32 rows as weights that map another row to its products with them: [dim / 2, 32 rows, 2]. Rows
// that are not there (null) are zero.
KERNEL void pack_across(const bf16* const* rows, int64_t dim, bf16* to) {
  auto* pairs = (uint32_t*)to;
  for (int64_t column = 0; column < kColumns; ++column) {
    const auto* row = (const uint32_t*)rows[column];
    for (int64_t d = 0; d < dim / 2; ++d) pairs[d * kColumns + column] = row ? row[d] : 0;
  }
}

// Packs 32 rows as weights that map 32 numbers to a sum of the rows: [16 pairs of rows, dim, 2].
KERNEL void pack_along(const bf16* const* rows, int64_t dim, bf16* to) {
  for (int64_t column = 0; column < kColumns; ++column) {
    const bf16* row = rows[column];
    bf16* at = to + (column / 2) * dim * 2 + column % 2;
    for (int64_t d = 0; d < dim; ++d) at[d * 2] = row ? row[d] : (bf16)0;
  }
}

// 16 scores from `p` on; those outside [first, last) as if they were infinitely low.
INLINE_KERNEL Floats scores_inside(const float* scores, int64_t p, int64_t first, int64_t last) {
  const Floats x = load(scores + p);
  if (p >= first && p + kLanes <= last) return x;
  return choose(lanes(first - p, last - p), x, all(-INFINITY));
}

struct Exponentials {
  float top, sum;
};

// Exponentials of scores[first, last) below the highest into weights, which are next to nothing elsewhere
// in [begin, end).
KERNEL Exponentials soften(const float* scores, bf16* weights, int64_t begin, int64_t first,
                           int64_t last, int64_t end) {
  Floats top = all(-INFINITY);
  for (int64_t p = begin; p < end; p += kLanes)
    top = max(top, scores_inside(scores, p, first, last));
  const float top_score = highest(top);
  Floats sum = zeros();
  for (int64_t p = begin; p < end; p += kLanes) {
    const Floats weight = exponential(sub(scores_inside(scores, p, first, last), all(top_score)));
    sum = add(sum, weight);
    narrow(weights + p, weight);
  }
  return {top_score, total(sum)};
}

// Attends ROWS query rows of one key head. A row is a position and one of the heads that share the key
// head, heads fastest, from row `first` on.
template <int ROWS>
KERNEL void attend_tile(const Prefill& call, int64_t kv_head, int64_t first, const bf16* keys,
                        const bf16* values, Scratch& scratch) {
  const int64_t dim = call.head_dim, group = call.group(), width = call.panels() * kColumns;
  uint32_t* queries = scratch.queries.data();
  int64_t ends[ROWS], starts[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; ++r) {
    const int64_t position = (first + r) / group, head = kv_head * group + (first + r) % group;
    std::memcpy(queries + r * dim / 2, call.q + position * call.q_stride + head * dim,
                sizeof(bf16) * dim);
    ends[r] = call.context + position + 1;
    starts[r] = call.window > 0 && ends[r] > call.window ? ends[r] - call.window : 0;
  }
  const int64_t begin = starts[0] / kColumns * kColumns;
  const int64_t end = (ends[ROWS - 1] + kColumns - 1) / kColumns * kColumns;
  float* scores = scratch.scores.data();
  const Floats scale = all(call.scale);
  for (int64_t p = begin; p < end; p += kColumns) {
    Floats low[ROWS], high[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = zeros();
    multiply<ROWS>(queries, dim / 2, (const uint32_t*)(keys + p * dim), kColumns, dim / 2, low, high);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      store(scores + r * width + p, mul(low[r], scale));
      store(scores + r * width + p + 16, mul(high[r], scale));
    }
  }
  float shares[ROWS];
  bf16* weights = scratch.weights.data();
  for (int r = 0; r < ROWS; ++r) {
    const Exponentials done =
        soften(scores + r * width, weights + r * width, begin, starts[r], ends[r], end);
    shares[r] = 1.0f / done.sum;
    if (call.log_sums)
      call.log_sums[kv_head * call.log_sums_stride + first + r] = done.top + std::log(done.sum);
  }
  for (int64_t d = 0; d < dim; d += kColumns) {
    Floats low[ROWS], high[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = zeros();
    multiply<ROWS>((const uint32_t*)(weights + begin), width / 2,
                   (const uint32_t*)(values + begin * dim) + d, dim, (end - begin) / 2, low, high);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const int64_t position = (first + r) / group, head = kv_head * group + (first + r) % group;
      bf16* out = call.out + (position * call.heads + head) * dim + d;
      narrow(out, mul(low[r], all(shares[r])));
      narrow(out + 16, mul(high[r], all(shares[r])));
    }
  }
}

// Packs one of the kv_heads * panels() items of a call, read where its keys lie; `packed` has room()
// elements.
inline void pack_item(const Prefill& call, int64_t item, bf16* packed) {
  const int64_t dim = call.head_dim, kv_head = item / call.panels(), first = item % call.panels() * kColumns;
  const bf16 *keys[kColumns], *values[kColumns];
  for (int64_t i = 0; i < kColumns; ++i) {
    const int64_t p = first + i;
    keys[i] = values[i] = nullptr;
    if (p >= call.length()) continue;
    const int64_t slot = call.blocks[p / call.block_size] * call.block_size + p % call.block_size;
    keys[i] = call.cache + (slot * 2 * call.kv_heads + kv_head) * dim;
    values[i] = keys[i] + call.kv_heads * dim;
  }
  bf16* to = packed + kv_head * call.packed_size() + first * dim;
  pack_across(keys, dim, to);
  pack_along(values, dim, to + call.kv_heads * call.packed_size());
}

// Attends one of the kv_heads * tiles() items of a call whose keys are packed. The last rows see the most
// keys; they come first, so that no thread ends with a long one.
inline void attend_item(const Prefill& call, int64_t item, const bf16* packed, Scratch& scratch) {
  const int64_t width = call.panels() * kColumns;
  grow(scratch.scores, kMaxRows * width);
  grow(scratch.weights, kMaxRows * width);
  grow(scratch.queries, kMaxRows * call.head_dim / 2);
  const int64_t kv_head = item % call.kv_heads, offset = kv_head * call.packed_size();
  const bf16 *keys = packed + offset, *values = keys + call.kv_heads * call.packed_size();
  const int64_t num_rows = call.rows * call.group();
  int64_t at = (call.tiles() - 1 - item / call.kv_heads) * kMaxRows;
  int64_t left = num_rows - at < kMaxRows ? num_rows - at : kMaxRows;
  for (; left >= kMaxRows; left -= kMaxRows, at += kMaxRows)
    attend_tile<kMaxRows>(call, kv_head, at, keys, values, scratch);
  for (; left >= 2; left -= 2, at += 2)
    attend_tile<2>(call, kv_head, at, keys, values, scratch);
  for (; left >= 1; left -= 1, at += 1)
    attend_tile<1>(call, kv_head, at, keys, values, scratch);
}

}  // namespace

extern "C" {

// Attention of one new token per row over its paged keys, that token's own included.
//
// q [rows, heads, head_dim], rows q_stride apart; cache [num_blocks, block_size, 2, kv_heads, head_dim];
// blocks [rows, max_blocks]; lengths [rows]: keys of each row; out [rows, heads * head_dim];
// window: keys a row may look back on, itself included, 0 for all. head_dim is a multiple of 32.
void EXPORT(decode_attention)(const bf16* q, int64_t q_stride, const bf16* cache, const int64_t* blocks,
                            int64_t max_blocks, const int64_t* lengths, bf16* out, int64_t rows,
                            int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                            int64_t window, float scale, int threads) {
  const Decode call{q,     q_stride, cache,    blocks,     max_blocks, lengths, out,
                    heads, kv_heads, head_dim, block_size, window,     scale};
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < rows * kv_heads; ++item)
      attend(call, item / kv_heads, item % kv_heads, scratch);
  }
}

// Causal attention of one sequence's chunk over its paged keys, the chunk's own included.
//
// q [rows, heads, head_dim], rows q_stride apart; cache as above; blocks: those of the sequence's
// context + rows keys; out [rows, heads * head_dim]; window as above.
void EXPORT(prefill_attention)(const bf16* q, int64_t q_stride, const bf16* cache,
                             const int64_t* blocks, bf16* out, int64_t rows, int64_t context,
                             int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                             int64_t window, float scale, int threads) {
  const Prefill call{q,     q_stride, cache,    blocks,     out,    rows, context,
                     heads, kv_heads, head_dim, block_size, window, scale};
  // Kept from call to call: fresh memory would cost more than the packing.
  static thread_local std::vector<bf16> packed;
  grow(packed, call.room());
  bf16* room = packed.data();
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
#pragma omp for schedule(static)
    for (int64_t item = 0; item < kv_heads * call.panels(); ++item) pack_item(call, item, room);
#pragma omp for schedule(dynamic, 4)
    for (int64_t item = 0; item < kv_heads * call.tiles(); ++item)
      attend_item(call, item, room, scratch);
  }
}

}  // extern "C"
