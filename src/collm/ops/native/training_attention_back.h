// The gradient of training's attention.

#pragma once

#include "training_attention.h"

namespace {

// Packed rows of one sample and key head for the gradient. Keys: keys across, keys along, values across.
// Queries, row by row of (position, head): queries across and along, gradients of outputs likewise.
struct GradientRoom {
  int64_t key_size, query_size;  // Elements of one packed form.

  explicit GradientRoom(const Chunk& call)
      : key_size(panels_of(call) * kColumns * call.head_dim),
        query_size(whole_panels(call.rows * call.group()) * call.head_dim) {}

  int64_t of_head() const { return 3 * key_size + 4 * query_size; }
};

// What the gradient is computed from and written to.
struct Gradient {
  const Batch& batch;
  const bf16* out;
  const bf16* d_out;
  float* deltas;  // Sum of each row's output times its gradient, where log_sums has its sum.
  bf16* dq;
  bf16* dkv;
  bf16* packed;
};

inline void pack_keys(const Gradient& gradient, int64_t sample, int64_t kv_head, int64_t first,
                      const Chunk& call, const GradientRoom& room, bf16* to) {
  const bf16 *keys[kColumns], *values[kColumns];
  for (int64_t i = 0; i < kColumns; ++i) {
    const int64_t p = first + i;
    keys[i] = p < call.length() ? gradient.batch.key(sample, p, kv_head) : nullptr;
    values[i] = keys[i] ? keys[i] + call.kv_heads * call.head_dim : nullptr;
  }
  to += first * call.head_dim;
  pack_across<kColumns>(keys, call.head_dim, to);
  pack_along<kColumns>(keys, call.head_dim, to + room.key_size);
  pack_across<kColumns>(values, call.head_dim, to + 2 * room.key_size);
}

KERNEL float product_of(const bf16* a, const bf16* b, int64_t size) {
  Floats sum = zeros();
  for (int64_t i = 0; i < size; i += kColumns) sum = dot2(sum, load_words(a + i), load_words(b + i));
  return total(sum);
}

inline void pack_queries(const Gradient& gradient, int64_t sample, int64_t kv_head, int64_t first,
                         const Chunk& call, const GradientRoom& room, bf16* to) {
  const Batch& batch = gradient.batch;
  const int64_t dim = call.head_dim, group = call.group(), start = batch.starts[sample];
  float* deltas = gradient.deltas + kv_head * call.log_sums_stride + start * group;
  const bf16 *queries[kColumns], *grads[kColumns];
  for (int64_t i = 0; i < kColumns; ++i) {
    const int64_t j = first + i, head = kv_head * group + j % group;
    queries[i] = grads[i] = nullptr;
    if (j >= call.rows * group) continue;
    const int64_t at = ((start + j / group) * call.heads + head) * dim;
    queries[i] = call.q + j / group * call.q_stride + head * dim;
    grads[i] = gradient.d_out + at;
    deltas[j] = product_of(gradient.out + at, gradient.d_out + at, dim);
  }
  to += 3 * room.key_size + first * dim;
  pack_across<kColumns>(queries, dim, to);
  pack_along<kColumns>(queries, dim, to + room.query_size);
  pack_across<kColumns>(grads, dim, to + 2 * room.query_size);
  pack_along<kColumns>(grads, dim, to + 3 * room.query_size);
}

inline int64_t packs_of(const Chunk& call) {
  return call.kv_heads * (panels_of(call) + whole_panels(call.rows * call.group()) / kColumns);
}

// Packs one of a sample's packs_of() items.
inline void pack_item(const Gradient& gradient, int64_t sample, int64_t item, int64_t room_before) {
  const Chunk call = sample_of(gradient.batch, sample);
  const GradientRoom room(call);
  const int64_t kv_head = item % call.kv_heads, panel = item / call.kv_heads;
  bf16* to = gradient.packed + room_before + kv_head * room.of_head();
  if (panel < panels_of(call))
    pack_keys(gradient, sample, kv_head, panel * kColumns, call, room, to);
  else
    pack_queries(gradient, sample, kv_head, (panel - panels_of(call)) * kColumns, call, room, to);
}

// sums[kTallRows, 32] become x W, or with ADDS gain it: the arguments of multiply_tiles, with all columns side
// by side. Rows that are not there may hold anything.
template <bool ADDS>
KERNEL void products(const bf16* x, int64_t stride, const uint32_t* w, int64_t w_step, int64_t depth,
                     float* sums, int64_t sums_step) {
  if constexpr (kHasTiles)
    return multiply_tiles<ADDS>((const uint32_t*)x, stride / 2, w, w + kLanes, w_step, depth, kTallRows, sums, sums_step);
  multiply_into<kMaxRows, ADDS>((const uint32_t*)x, stride / 2, w, w_step, depth, sums, sums_step);
}

// Scores and products of rows with 32 others, and what their weights are made from.
struct Panel {
  alignas(64) float scores[kTallRows * kColumns];
  alignas(64) float products[kTallRows * kColumns];
};

// Turns 32 of a row's scores and products into weights exp(score - log sum) and gradients of scores by them,
// where they are from `first` to before `last`; null for `weights` that nobody needs.
INLINE_KERNEL void scores_back(const Panel& panel, int64_t row, Floats scale, const Floats* log_sums,
                               const Floats* deltas, int64_t first, int64_t last, bf16* weights,
                               bf16* d_scores) {
  UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t at = row * kColumns + half * kLanes;
    const Floats raw = exponential(sub(mul(load(panel.scores + at), scale), log_sums[half]));
    const Floats weight = choose(lanes(first - half * kLanes, last - half * kLanes), raw, zeros());
    if (weights) narrow(weights + half * kLanes, weight);
    narrow(d_scores + half * kLanes,
           mul(mul(weight, sub(load(panel.products + at), deltas[half])), scale));
  }
}

// Gradients of scores by `rows` query rows against 32 keys from `p` on, to d_scores [rows, width].
KERNEL void query_scores_back(const Panel& panel, const QueryRows& query, int64_t rows, int64_t p,
                              const float* log_sums, const float* deltas, bf16* d_scores, int64_t width) {
  const Floats scale = all(query.call.scale);
  for (int64_t r = 0; r < rows; ++r) {
    const Floats sums[2] = {all(log_sums[r]), all(log_sums[r])}, delta[2] = {all(deltas[r]), all(deltas[r])};
    scores_back(panel, r, scale, sums, delta, query.start(r) - p, query.end(r) - p, nullptr,
                d_scores + r * width + p);
  }
}

// Gradient by `rows` query rows, kTallRows at most, from `first` on, as QueryRows has them.
inline void grad_queries(const Gradient& gradient, const Chunk& call, int64_t sample, int64_t kv_head,
                         int64_t first, int64_t rows, const bf16* packed, const GradientRoom& room,
                         Scratch& scratch) {
  const QueryRows query{call, kv_head, first};
  const int64_t dim = call.head_dim, width = panels_of(call) * kColumns;
  const int64_t start = gradient.batch.starts[sample], begin = query.start(0) / kColumns * kColumns;
  const int64_t end = whole_panels(query.end(rows - 1));
  const float* log_sums = call.log_sums + kv_head * call.log_sums_stride + first;
  const float* deltas = gradient.deltas + kv_head * call.log_sums_stride + start * call.group() + first;
  auto *queries = (bf16*)scratch.queries.data(), *grads = queries + kTallRows * dim;
  const auto place = [&](int64_t r) {
    return ((start + query.position(r)) * call.heads + query.head(r)) * dim;
  };
  query.copy(rows, queries);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(grads + r * dim, gradient.d_out + place(r), sizeof(bf16) * dim);
  bf16* d_scores = scratch.weights.data();
  Panel panel;
  for (int64_t p = begin; p < end; p += kColumns) {
    const auto* keys = (const uint32_t*)(packed + p * dim);
    const auto* values = (const uint32_t*)(packed + 2 * room.key_size + p * dim);
    products<false>(queries, dim, keys, kColumns, dim / 2, panel.scores, kColumns);
    products<false>(grads, dim, values, kColumns, dim / 2, panel.products, kColumns);
    query_scores_back(panel, query, rows, p, log_sums, deltas, d_scores, width);
  }
  const auto* along = (const uint32_t*)(packed + room.key_size + begin * dim);
  for (int64_t d = 0; d < dim; d += kColumns) {
    products<false>(d_scores + begin, width, along + d, dim, (end - begin) / 2, panel.scores, kColumns);
    for (int64_t r = 0; r < rows; ++r)
      narrow_all(panel.scores + r * kColumns, gradient.dq + place(r) + d, kColumns);
  }
}

// Positions of a sample whose queries see a key; maybe in the prefix before it.
struct KeyRows {
  const Chunk& call;
  int64_t first;

  int64_t behind(int64_t r) const { return first + r - call.context; }
  // Of the query rows that see key r.
  int64_t start(int64_t r) const { return behind(r) > 0 ? behind(r) * call.group() : 0; }
  int64_t end(int64_t r) const {
    const int64_t all = call.rows * call.group();
    const int64_t upto = (behind(r) + call.window) * call.group();
    return call.window > 0 && upto < all ? upto : all;
  }
};

// Weights and gradients of scores by `rows` keys against 32 query rows from `j` on, each [rows, width].
KERNEL void key_scores_back(const Panel& panel, const KeyRows& key, int64_t rows, int64_t j,
                            const float* log_sums, const float* deltas, bf16* weights, bf16* d_scores,
                            int64_t width) {
  const int64_t num_queries = key.call.rows * key.call.group();
  const Mask there = lanes(0, num_queries - j), beyond = lanes(0, num_queries - j - kLanes);
  const Floats sums[2] = {load_some(there, log_sums + j), load_some(beyond, log_sums + j + kLanes)};
  const Floats delta[2] = {load_some(there, deltas + j), load_some(beyond, deltas + j + kLanes)};
  for (int64_t r = 0; r < rows; ++r)
    scores_back(panel, r, all(key.call.scale), sums, delta, key.start(r) - j, key.end(r) - j,
                weights + r * width + j, d_scores + r * width + j);
}

// Adds the gradient by keys and values at `rows` positions, kTallRows at most, from `first` on, as far as one
// sample's queries see them, to sums [kTallRows, 2, head_dim].
inline void add_keys(const Gradient& gradient, const Chunk& call, int64_t sample, int64_t kv_head,
                     int64_t first, int64_t rows, const bf16* packed, const GradientRoom& room,
                     Scratch& scratch, float* sums) {
  const KeyRows key{call, first};
  const int64_t dim = call.head_dim, width = whole_panels(call.rows * call.group());
  const int64_t begin = key.start(0) / kColumns * kColumns, end = whole_panels(key.end(rows - 1));
  if (begin >= end) return;
  auto *keys = (bf16*)scratch.queries.data(), *values = keys + kTallRows * dim;
  for (int64_t r = 0; r < rows; ++r) {
    const bf16* own = gradient.batch.key(sample, first + r, kv_head);
    std::memcpy(keys + r * dim, own, sizeof(bf16) * dim);
    std::memcpy(values + r * dim, own + call.kv_heads * dim, sizeof(bf16) * dim);
  }
  const float* log_sums = call.log_sums + kv_head * call.log_sums_stride;
  const float* deltas =
      gradient.deltas + kv_head * call.log_sums_stride + gradient.batch.starts[sample] * call.group();
  const bf16* queries = packed + 3 * room.key_size;
  bf16 *weights = scratch.weights.data(), *d_scores = weights + kTallRows * width;
  Panel panel;
  for (int64_t j = begin; j < end; j += kColumns) {
    const auto* across = (const uint32_t*)(queries + j * dim);
    const auto* grads = (const uint32_t*)(queries + 2 * room.query_size + j * dim);
    products<false>(keys, dim, across, kColumns, dim / 2, panel.scores, kColumns);
    products<false>(values, dim, grads, kColumns, dim / 2, panel.products, kColumns);
    key_scores_back(panel, key, rows, j, log_sums, deltas, weights, d_scores, width);
  }
  const bf16* along[2] = {queries + room.query_size, queries + 3 * room.query_size};
  for (int64_t d = 0; d < dim; d += kColumns)
    for (int part = 0; part < 2; ++part)
      products<true>((part == 0 ? d_scores : weights) + begin, width,
                     (const uint32_t*)(along[part] + begin * dim) + d, dim, (end - begin) / 2,
                     sums + part * dim + d, 2 * dim);
}

// Gradient by keys and values of one sample at `rows` of its own positions. Those of a prefix gather what
// every sample after it adds; `rooms` has where each sample's packed rows begin.
inline void grad_keys(const Gradient& gradient, int64_t sample, int64_t kv_head, int64_t first, int64_t rows,
                      const int64_t* rooms, Scratch& scratch) {
  const Batch& batch = gradient.batch;
  const int64_t dim = batch.head_dim, row = batch.row_of(sample, first);
  float* sums = scratch.scores.data();
  std::memset(sums, 0, sizeof(float) * kTallRows * 2 * dim);
  for (int64_t other = 0; other < batch.samples; ++other) {
    const bool sees = other == sample || (batch.starts[sample] == 0 && batch.prefixes[other] > 0);
    if (!sees) continue;
    const Chunk call = sample_of(batch, other);
    const GradientRoom room(call);
    const bf16* packed = gradient.packed + rooms[other] + kv_head * room.of_head();
    add_keys(gradient, call, other, kv_head, first, rows, packed, room, scratch, sums);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t part = 0; part < 2; ++part)
      narrow_all(sums + (r * 2 + part) * dim,
                 gradient.dkv + (((row + r) * 2 + part) * batch.kv_heads + kv_head) * dim, dim);
}

// Tiles of a sample's query rows of one key head, and of its keys.
inline int64_t query_tiles_of(const Chunk& call) {
  return (call.rows * call.group() + kTallRows - 1) / kTallRows;
}
inline int64_t key_tiles_of(const Chunk& call) { return (call.rows + kTallRows - 1) / kTallRows; }

// One of a sample's kv_heads * (query tiles + key tiles) items.
inline void grad_item(const Gradient& gradient, int64_t sample, int64_t item, const int64_t* rooms,
                      Scratch& scratch) {
  const Chunk call = sample_of(gradient.batch, sample);
  const GradientRoom room(call);
  const int64_t kv_head = item % call.kv_heads, tile = item / call.kv_heads;
  const bf16* packed = gradient.packed + rooms[sample] + kv_head * room.of_head();
  const Tiles tiles(kTallRows);
  if (tile < query_tiles_of(call)) {
    const int64_t at = tile * kTallRows, left = call.rows * call.group() - at;
    return grad_queries(gradient, call, sample, kv_head, at, left < kTallRows ? left : kTallRows, packed, room,
                        scratch);
  }
  const int64_t at = (tile - query_tiles_of(call)) * kTallRows, left = call.rows - at;
  grad_keys(gradient, sample, kv_head, call.context + at, left < kTallRows ? left : kTallRows, rooms, scratch);
}

// Makes a thread's room large enough for the tiles of every sample.
inline void fit_gradient(Scratch& scratch, const Batch& batch) {
  int64_t widest = 0;
  for (int64_t i = 0; i < batch.samples; ++i) {
    const Chunk call = sample_of(batch, i);
    const int64_t queries = 2 * whole_panels(call.rows * call.group());
    const int64_t keys = panels_of(call) * kColumns;
    if (queries > widest) widest = queries;
    if (keys > widest) widest = keys;
  }
  grow(scratch.weights, kTallRows * widest);
  grow(scratch.queries, kTallRows * batch.head_dim);
  grow(scratch.scores, kTallRows * 2 * batch.head_dim);
}

}  // namespace

extern "C" {

// Gradients of training_attention by q [rows, heads, head_dim] and kv, for that of its output; deltas as log_sums.
void EXPORT(training_attention_back)(const bf16* q, int64_t q_stride, const bf16* kv,
                                     const int64_t* starts, const int64_t* lengths,
                                     const int64_t* prefixes, int64_t samples, int64_t rows,
                                     int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window,
                                     const bf16* out, float* log_sums, const bf16* d_out, float* deltas,
                                     bf16* dq, bf16* dkv, int threads) {
  const Batch batch{q,    q_stride, kv,       starts,   lengths, prefixes, samples,
                    rows, heads,    kv_heads, head_dim, window,  log_sums};
  std::vector<int64_t> rooms(samples + 1, 0);
  for (int64_t i = 0; i < samples; ++i)
    rooms[i + 1] = rooms[i] + kv_heads * GradientRoom(sample_of(batch, i)).of_head();
  static thread_local std::vector<bf16> room;
  grow(room, rooms[samples]);
  const Gradient gradient{batch, out, d_out, deltas, dq, dkv, room.data()};
  Team team;
  const auto nothing = [](int64_t) { return (int64_t)0; };
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
    fit_gradient(scratch, batch);
    take_items(
        team, samples, [&](int64_t i) { return packs_of(sample_of(batch, i)); }, nothing,
        [&](int64_t i, int64_t item, int64_t) { pack_item(gradient, i, item, rooms[i]); });
    team.meet();
    take_items(
        team, samples,
        [&](int64_t i) {
          const Chunk call = sample_of(batch, i);
          return kv_heads * (query_tiles_of(call) + key_tiles_of(call));
        },
        nothing,
        [&](int64_t i, int64_t item, int64_t) { grad_item(gradient, i, item, rooms.data(), scratch); });
  }
}

}  // extern "C"
