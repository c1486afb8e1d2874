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

// Attends the query heads of one row that share key head `kv_head`. `scores` has room for
// [group, length]; `sums` for [group, head_dim].
KERNEL void attend(const Decode& call, int64_t row, int64_t kv_head, float* scores, float* sums) {
  const int64_t dim = call.head_dim, group = call.heads / call.kv_heads;
  const int64_t length = call.lengths[row];
  const int64_t start = call.window > 0 && length > call.window ? length - call.window : 0;
  const int64_t token_stride = 2 * call.kv_heads * dim;
  const int64_t* table = call.blocks + row * call.max_blocks;
  const bf16* q = call.q + row * call.q_stride + kv_head * group * dim;
  const auto key = [&](int64_t p) {
    const int64_t slot = table[p / call.block_size] * call.block_size + p % call.block_size;
    return call.cache + slot * token_stride + kv_head * dim;
  };
  for (int64_t p = start; p < length; ++p) {
    const bf16* k = key(p);
    for (int64_t g = 0; g < group; ++g) {
      Floats sum = zeros();
      for (int64_t d = 0; d < dim; d += 32)
        sum = dot2(sum, load_words(q + g * dim + d), load_words(k + d));
      scores[g * length + p] = total(sum) * call.scale;
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    float* row_scores = scores + g * length;
    float top = -INFINITY;
    for (int64_t p = start; p < length; ++p) top = std::fmax(top, row_scores[p]);
    Floats sum = zeros();
    for (int64_t p = start; p < length; p += 16) {
      const Mask some = lanes(0, length - p);
      const Floats weight = exponential(sub(load_some(some, row_scores + p), all(top)));
      sum = add(sum, choose(some, weight, zeros()));
      store_some(some, row_scores + p, weight);
    }
    const float share = 1.0f / total(sum);
    for (int64_t p = start; p < length; ++p) row_scores[p] *= share;
  }
  std::memset(sums, 0, sizeof(float) * group * dim);
  for (int64_t p = start; p < length; ++p) {
    const bf16* v = key(p) + call.kv_heads * dim;
    for (int64_t d = 0; d < dim; d += 16) {
      const Floats value = widen(v + d);
      for (int64_t g = 0; g < group; ++g) {
        float* sum = sums + g * dim + d;
        const Floats weight = all(scores[g * length + p]);
        store(sum, fma(weight, value, load(sum)));
      }
    }
  }
  bf16* out = call.out + (row * call.heads + kv_head * group) * dim;
  for (int64_t d = 0; d < group * dim; d += 16) narrow(out + d, load(sums + d));
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

  int64_t group() const { return heads / kv_heads; }
  int64_t length() const { return context + rows; }
  int64_t panels() const { return (length() + kColumns - 1) / kColumns; }
  // Elements of one key head's packed keys; its values take as many.
  int64_t packed_size() const { return panels() * kColumns * head_dim; }
};

// Packs 32 keys and values of one key head, read where they lie. Keys as a linear layer's weights that
// map a query to scores, [head_dim / 2, 32 keys, 2]; values as weights that map scores to an output,
// [16 pairs of keys, head_dim, 2]. Keys past the end are zero.
KERNEL void pack_panel(const Prefill& call, int64_t kv_head, int64_t panel, bf16* keys, bf16* values) {
  const int64_t dim = call.head_dim, token_stride = 2 * call.kv_heads * dim;
  auto* key_pairs = (uint32_t*)(keys + panel * kColumns * dim);
  bf16* value_pairs = values + panel * kColumns * dim;
  for (int64_t column = 0; column < kColumns; ++column) {
    const int64_t p = panel * kColumns + column;
    const bool is_there = p < call.length();
    const int64_t slot =
        is_there ? call.blocks[p / call.block_size] * call.block_size + p % call.block_size : 0;
    const bf16* key = call.cache + slot * token_stride + kv_head * dim;
    const bf16* value = key + call.kv_heads * dim;
    const auto* pair = (const uint32_t*)key;
    for (int64_t d = 0; d < dim / 2; ++d) key_pairs[d * kColumns + column] = is_there ? pair[d] : 0;
    bf16* to = value_pairs + (column / 2) * dim * 2 + column % 2;
    for (int64_t d = 0; d < dim; ++d) to[d * 2] = is_there ? value[d] : (bf16)0;
  }
}

// Room of one thread for a tile's rows: their queries side by side, their scores, and the same as
// weights.
struct Scratch {
  std::vector<uint32_t> queries;
  std::vector<float> scores;
  std::vector<bf16> weights;
};

// 16 scores from `p` on; those outside [first, last) as if they were infinitely low.
INLINE_KERNEL Floats scores_inside(const float* scores, int64_t p, int64_t first, int64_t last) {
  const Floats x = load(scores + p);
  if (p >= first && p + kLanes <= last) return x;
  return choose(lanes(first - p, last - p), x, all(-INFINITY));
}

// Softmax of scores[first, last) into weights, which are next to nothing elsewhere in [begin, end); the
// weights are not divided by their sum, whose inverse is returned.
KERNEL float soften(const float* scores, bf16* weights, int64_t begin, int64_t first, int64_t last,
                    int64_t end) {
  Floats top = all(-INFINITY);
  for (int64_t p = begin; p < end; p += kLanes)
    top = max(top, scores_inside(scores, p, first, last));
  const Floats top_score = all(highest(top));
  Floats sum = zeros();
  for (int64_t p = begin; p < end; p += kLanes) {
    const Floats weight = exponential(sub(scores_inside(scores, p, first, last), top_score));
    sum = add(sum, weight);
    narrow(weights + p, weight);
  }
  return 1.0f / total(sum);
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
  for (int r = 0; r < ROWS; ++r)
    shares[r] = soften(scores + r * width, weights + r * width, begin, starts[r], ends[r], end);
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
  const int64_t group = heads / kv_heads;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> scores(group * max_blocks * block_size), sums(group * head_dim);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < rows * kv_heads; ++item)
      attend(call, item / kv_heads, item % kv_heads, scores.data(), sums.data());
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
  const auto needed = (size_t)(2 * kv_heads * call.packed_size());
  if (packed.size() < needed) packed.resize(needed);
  bf16 *keys = packed.data(), *values = keys + kv_heads * call.packed_size();
  const int64_t panels = call.panels(), num_rows = rows * call.group();
  const int64_t tiles = (num_rows + kMaxRows - 1) / kMaxRows;
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
    const auto room = (size_t)(kMaxRows * panels * kColumns);
    if (scratch.scores.size() < room) scratch.scores.resize(room), scratch.weights.resize(room);
    scratch.queries.resize(kMaxRows * head_dim / 2);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < kv_heads * panels; ++item) {
      const int64_t kv_head = item / panels, offset = kv_head * call.packed_size();
      pack_panel(call, kv_head, item % panels, keys + offset, values + offset);
    }
#pragma omp for schedule(dynamic, 4)
    for (int64_t item = 0; item < kv_heads * tiles; ++item) {
      // The last rows see the most keys; they come first, so that no thread ends with a long one.
      const int64_t kv_head = item % kv_heads, row = (tiles - 1 - item / kv_heads) * kMaxRows;
      const int64_t offset = kv_head * call.packed_size();
      int64_t left = num_rows - row < kMaxRows ? num_rows - row : kMaxRows, at = row;
      for (; left >= kMaxRows; left -= kMaxRows, at += kMaxRows)
        attend_tile<kMaxRows>(call, kv_head, at, keys + offset, values + offset, scratch);
      for (; left >= 2; left -= 2, at += 2)
        attend_tile<2>(call, kv_head, at, keys + offset, values + offset, scratch);
      for (; left >= 1; left -= 1, at += 1)
        attend_tile<1>(call, kv_head, at, keys + offset, values + offset, scratch);
    }
  }
}

}  // extern "C"
