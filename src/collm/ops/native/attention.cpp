// Attention over paged keys and values where they lie, for CPUs with AVX512-BF16.

#include "simd.h"

namespace {

// What one call of collm_decode_attention computes; shapes as in its declaration.
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
      __m512 sum = _mm512_setzero_ps();
      for (int64_t d = 0; d < dim; d += 32)
        sum = _mm512_dpbf16_ps(sum, pairs(q + g * dim + d), pairs(k + d));
      scores[g * length + p] = _mm512_reduce_add_ps(sum) * call.scale;
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    float* row_scores = scores + g * length;
    float top = -INFINITY;
    for (int64_t p = start; p < length; ++p) top = std::fmax(top, row_scores[p]);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t p = start; p < length; p += 16) {
      const int64_t left = length - p;
      const __mmask16 some = left < 16 ? (__mmask16)((1 << left) - 1) : (__mmask16)-1;
      const __m512 score = _mm512_maskz_loadu_ps(some, row_scores + p);
      const __m512 weight = exponential(_mm512_sub_ps(score, _mm512_set1_ps(top)));
      sum = _mm512_mask_add_ps(sum, some, sum, weight);
      _mm512_mask_storeu_ps(row_scores + p, some, weight);
    }
    const float share = 1.0f / _mm512_reduce_add_ps(sum);
    for (int64_t p = start; p < length; ++p) row_scores[p] *= share;
  }
  std::memset(sums, 0, sizeof(float) * group * dim);
  for (int64_t p = start; p < length; ++p) {
    const bf16* v = key(p) + call.kv_heads * dim;
    for (int64_t d = 0; d < dim; d += 16) {
      const __m512 value = widen(v + d);
      for (int64_t g = 0; g < group; ++g) {
        float* sum = sums + g * dim + d;
        const __m512 weight = _mm512_set1_ps(scores[g * length + p]);
        _mm512_storeu_ps(sum, _mm512_fmadd_ps(weight, value, _mm512_loadu_ps(sum)));
      }
    }
  }
  bf16* out = call.out + (row * call.heads + kv_head * group) * dim;
  for (int64_t d = 0; d < group * dim; d += 16) narrow(out + d, _mm512_loadu_ps(sums + d));
}

// What one call of collm_prefill_attention computes; shapes as in its declaration.
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

// Sums x[r] W over `depth` pairs for 32 columns, steps of W `w_stride` pairs apart.
template <int ROWS>
INLINE_KERNEL void multiply(const uint32_t* const* x, const uint32_t* w, int64_t w_stride,
                            int64_t depth, __m512* low, __m512* high) {
  for (int64_t k = 0; k < depth; ++k) {
    const __m512bh w_low = pairs(w + k * w_stride), w_high = pairs(w + k * w_stride + 16);
    for (int r = 0; r < ROWS; ++r) {
      const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)x[r][k]);
      low[r] = _mm512_dpbf16_ps(low[r], w_low, pair);
      high[r] = _mm512_dpbf16_ps(high[r], w_high, pair);
    }
  }
}

// Room of one thread: scores of a tile's rows, and the same as weights.
struct Scratch {
  std::vector<float> scores;
  std::vector<bf16> weights;
};

// Softmax of scores[first, last) into weights, which are zero elsewhere in [begin, end); the weights
// are not divided by their sum, whose inverse is returned.
KERNEL float soften(const float* scores, bf16* weights, int64_t begin, int64_t first, int64_t last,
                    int64_t end) {
  const auto inside = [&](int64_t p) {
    const int64_t below = first - p, above = last - p;
    const uint32_t from = below <= 0 ? 0xffff : below >= 16 ? 0 : 0xffffu << below;
    const uint32_t upto = above >= 16 ? 0xffff : above <= 0 ? 0 : (1u << above) - 1;
    return (__mmask16)(from & upto);
  };
  __m512 top = _mm512_set1_ps(-INFINITY);
  for (int64_t p = begin; p < end; p += 16)
    top = _mm512_mask_max_ps(top, inside(p), top, _mm512_loadu_ps(scores + p));
  const __m512 highest = _mm512_set1_ps(_mm512_reduce_max_ps(top));
  __m512 sum = _mm512_setzero_ps();
  for (int64_t p = begin; p < end; p += 16) {
    const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + p), highest));
    const __m512 kept = _mm512_maskz_mov_ps(inside(p), weight);
    sum = _mm512_add_ps(sum, kept);
    narrow(weights + p, kept);
  }
  return 1.0f / _mm512_reduce_add_ps(sum);
}

// Attends ROWS query rows of one key head. A row is a position and one of the heads that share the key
// head, heads fastest, from row `first` on.
template <int ROWS>
KERNEL void attend_tile(const Prefill& call, int64_t kv_head, int64_t first, const bf16* keys,
                        const bf16* values, Scratch& scratch) {
  const int64_t dim = call.head_dim, group = call.group(), width = call.panels() * kColumns;
  const uint32_t* x[ROWS];
  int64_t ends[ROWS], starts[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    const int64_t position = (first + r) / group, head = kv_head * group + (first + r) % group;
    x[r] = (const uint32_t*)(call.q + position * call.q_stride + head * dim);
    ends[r] = call.context + position + 1;
    starts[r] = call.window > 0 && ends[r] > call.window ? ends[r] - call.window : 0;
  }
  const int64_t begin = starts[0] / kColumns * kColumns;
  const int64_t end = (ends[ROWS - 1] + kColumns - 1) / kColumns * kColumns;
  float* scores = scratch.scores.data();
  const __m512 scale = _mm512_set1_ps(call.scale);
  for (int64_t p = begin; p < end; p += kColumns) {
    __m512 low[ROWS], high[ROWS];
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = _mm512_setzero_ps();
    multiply<ROWS>(x, (const uint32_t*)(keys + p * dim), kColumns, dim / 2, low, high);
    for (int r = 0; r < ROWS; ++r) {
      _mm512_storeu_ps(scores + r * width + p, _mm512_mul_ps(low[r], scale));
      _mm512_storeu_ps(scores + r * width + p + 16, _mm512_mul_ps(high[r], scale));
    }
  }
  float shares[ROWS];
  const uint32_t* weights[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    bf16* row = scratch.weights.data() + r * width;
    shares[r] = soften(scores + r * width, row, begin, starts[r], ends[r], end);
    weights[r] = (const uint32_t*)(row + begin);
  }
  for (int64_t d = 0; d < dim; d += kColumns) {
    __m512 low[ROWS], high[ROWS];
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = _mm512_setzero_ps();
    multiply<ROWS>(weights, (const uint32_t*)(values + begin * dim) + d, dim, (end - begin) / 2, low, high);
    for (int r = 0; r < ROWS; ++r) {
      const int64_t position = (first + r) / group, head = kv_head * group + (first + r) % group;
      bf16* out = call.out + (position * call.heads + head) * dim + d;
      narrow(out, _mm512_mul_ps(low[r], _mm512_set1_ps(shares[r])));
      narrow(out + 16, _mm512_mul_ps(high[r], _mm512_set1_ps(shares[r])));
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
void collm_decode_attention(const bf16* q, int64_t q_stride, const bf16* cache, const int64_t* blocks,
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
void collm_prefill_attention(const bf16* q, int64_t q_stride, const bf16* cache,
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
      for (; left >= 8; left -= 8, at += 8)
        attend_tile<8>(call, kv_head, at, keys + offset, values + offset, scratch);
      for (; left >= 2; left -= 2, at += 2)
        attend_tile<2>(call, kv_head, at, keys + offset, values + offset, scratch);
      for (; left >= 1; left -= 1, at += 1)
        attend_tile<1>(call, kv_head, at, keys + offset, values + offset, scratch);
    }
  }
}

}  // extern "C"
