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
        query_size(padded(call.rows * call.group()) * call.head_dim) {}

  static int64_t padded(int64_t size) { return (size + kColumns - 1) / kColumns * kColumns; }
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
  return call.kv_heads * (panels_of(call) + GradientRoom::padded(call.rows * call.group()) / kColumns);
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

// Weights exp(score - log sum), and gradients of scores by them, of 16 scores and products.
INLINE_KERNEL void scores_back(Floats& scores, Floats& products, Floats scale, Floats log_sums,
                               Floats deltas, Mask some) {
  const Floats weights = exponential(sub(mul(scores, scale), log_sums));
  scores = choose(some, weights, zeros());
  products = mul(mul(scores, sub(products, deltas)), scale);
}

// Gradient by ROWS query rows from `first` on, as attend_tile has them.
template <int ROWS>
KERNEL void grad_queries(const Gradient& gradient, const Chunk& call, int64_t sample, int64_t kv_head,
                         int64_t first, const bf16* packed, const GradientRoom& room, Scratch& scratch) {
  const int64_t dim = call.head_dim, group = call.group(), width = panels_of(call) * kColumns;
  const int64_t start = gradient.batch.starts[sample];
  uint32_t *queries = scratch.queries.data(), *grads = queries + ROWS * dim / 2;
  const float* log_sums = call.log_sums + kv_head * call.log_sums_stride + first;
  const float* deltas =
      gradient.deltas + kv_head * call.log_sums_stride + start * group + first;
  int64_t ends[ROWS], starts[ROWS], places[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    const int64_t position = (first + r) / group, head = kv_head * group + (first + r) % group;
    places[r] = ((start + position) * call.heads + head) * dim;
    std::memcpy(queries + r * dim / 2, call.q + position * call.q_stride + head * dim,
                sizeof(bf16) * dim);
    std::memcpy(grads + r * dim / 2, gradient.d_out + places[r], sizeof(bf16) * dim);
    ends[r] = call.context + position + 1;
    starts[r] = call.window > 0 && ends[r] > call.window ? ends[r] - call.window : 0;
  }
  const int64_t begin = starts[0] / kColumns * kColumns;
  const int64_t end = GradientRoom::padded(ends[ROWS - 1]);
  bf16* weights = scratch.weights.data();
  const Floats scale = all(call.scale);
  for (int64_t p = begin; p < end; p += kColumns) {
    Floats low[ROWS], high[ROWS], d_low[ROWS], d_high[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = d_low[r] = d_high[r] = zeros();
    const auto* keys = (const uint32_t*)(packed + p * dim);
    const auto* values = (const uint32_t*)(packed + 2 * room.key_size + p * dim);
    multiply<ROWS>(queries, dim / 2, keys, kColumns, dim / 2, low, high);
    multiply<ROWS>(grads, dim / 2, values, kColumns, dim / 2, d_low, d_high);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const Floats sum = all(log_sums[r]), delta = all(deltas[r]);
      scores_back(low[r], d_low[r], scale, sum, delta, lanes(starts[r] - p, ends[r] - p));
      scores_back(high[r], d_high[r], scale, sum, delta,
                  lanes(starts[r] - p - kLanes, ends[r] - p - kLanes));
      narrow(weights + r * width + p, d_low[r]);
      narrow(weights + r * width + p + kLanes, d_high[r]);
    }
  }
  const bf16* along = packed + room.key_size + begin * dim;
  for (int64_t d = 0; d < dim; d += kColumns) {
    Floats low[ROWS], high[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = zeros();
    multiply<ROWS>((const uint32_t*)(weights + begin), width / 2, (const uint32_t*)along + d, dim,
                   (end - begin) / 2, low, high);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      narrow(gradient.dq + places[r] + d, low[r]);
      narrow(gradient.dq + places[r] + d + kLanes, high[r]);
    }
  }
}

// Adds the gradient by keys and values at ROWS positions from `first` on, as far as one sample's queries
// see them, to sums [ROWS, 2, head_dim].
template <int ROWS>
KERNEL void add_keys(const Gradient& gradient, const Chunk& call, int64_t sample, int64_t kv_head,
                     int64_t first, const bf16* packed, const GradientRoom& room, Scratch& scratch,
                     float* sums) {
  const int64_t dim = call.head_dim, group = call.group(), num_queries = call.rows * group;
  const int64_t width = GradientRoom::padded(num_queries);
  uint32_t *keys = scratch.queries.data(), *values = keys + ROWS * dim / 2;
  int64_t starts[ROWS], ends[ROWS];  // Of the query rows that see a key.
  for (int r = 0; r < ROWS; ++r) {
    const int64_t behind = first + r - call.context;  // Position after the prefix; maybe in it.
    const bf16* key = gradient.batch.key(sample, first + r, kv_head);
    std::memcpy(keys + r * dim / 2, key, sizeof(bf16) * dim);
    std::memcpy(values + r * dim / 2, key + call.kv_heads * dim, sizeof(bf16) * dim);
    starts[r] = behind > 0 ? behind * group : 0;
    ends[r] = call.window > 0 && (behind + call.window) * group < num_queries
                  ? (behind + call.window) * group
                  : num_queries;
  }
  const int64_t begin = starts[0] / kColumns * kColumns, end = GradientRoom::padded(ends[ROWS - 1]);
  if (begin >= end) return;
  const float* log_sums = call.log_sums + kv_head * call.log_sums_stride;
  const float* deltas =
      gradient.deltas + kv_head * call.log_sums_stride + gradient.batch.starts[sample] * group;
  const bf16* queries = packed + 3 * room.key_size;
  bf16 *weights = scratch.weights.data(), *d_scores = weights + ROWS * width;
  const Floats scale = all(call.scale);
  for (int64_t j = begin; j < end; j += kColumns) {
    Floats low[ROWS], high[ROWS], d_low[ROWS], d_high[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = d_low[r] = d_high[r] = zeros();
    const auto* across = (const uint32_t*)(queries + j * dim);
    const auto* grads = (const uint32_t*)(queries + 2 * room.query_size + j * dim);
    multiply<ROWS>(keys, dim / 2, across, kColumns, dim / 2, low, high);
    multiply<ROWS>(values, dim / 2, grads, kColumns, dim / 2, d_low, d_high);
    const Mask there = lanes(0, num_queries - j), beyond = lanes(0, num_queries - j - kLanes);
    const Floats sum_low = load_some(there, log_sums + j), delta_low = load_some(there, deltas + j);
    const Floats sum_high = load_some(beyond, log_sums + j + kLanes);
    const Floats delta_high = load_some(beyond, deltas + j + kLanes);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      scores_back(low[r], d_low[r], scale, sum_low, delta_low, lanes(starts[r] - j, ends[r] - j));
      scores_back(high[r], d_high[r], scale, sum_high, delta_high,
                  lanes(starts[r] - j - kLanes, ends[r] - j - kLanes));
      bf16 *weight = weights + r * width + j, *d_score = d_scores + r * width + j;
      narrow(weight, low[r]), narrow(weight + kLanes, high[r]);
      narrow(d_score, d_low[r]), narrow(d_score + kLanes, d_high[r]);
    }
  }
  const bf16* along[2] = {queries + room.query_size, queries + 3 * room.query_size};
  for (int64_t d = 0; d < dim; d += kColumns)
    for (int part = 0; part < 2; ++part) {
      const bf16* x = part == 0 ? d_scores : weights;
      Floats low[ROWS], high[ROWS];
      UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const float* sum = sums + (r * 2 + part) * dim + d;
        low[r] = load(sum), high[r] = load(sum + kLanes);
      }
      multiply<ROWS>((const uint32_t*)(x + begin), width / 2,
                     (const uint32_t*)(along[part] + begin * dim) + d, dim, (end - begin) / 2, low, high);
      UNROLL
      for (int r = 0; r < ROWS; ++r) {
        float* sum = sums + (r * 2 + part) * dim + d;
        store(sum, low[r]), store(sum + kLanes, high[r]);
      }
    }
}

// Gradient by keys and values of one sample at ROWS of its own positions. Those of a prefix gather what
// every sample after it adds; `rooms` has where each sample's packed rows begin.
template <int ROWS>
KERNEL void grad_keys(const Gradient& gradient, int64_t sample, int64_t kv_head, int64_t first,
                      const int64_t* rooms, Scratch& scratch) {
  const Batch& batch = gradient.batch;
  const int64_t dim = batch.head_dim, row = batch.row_of(sample, first);
  float* sums = scratch.scores.data();
  std::memset(sums, 0, sizeof(float) * ROWS * 2 * dim);
  for (int64_t other = 0; other < batch.samples; ++other) {
    const bool sees = other == sample || (batch.starts[sample] == 0 && batch.prefixes[other] > 0);
    if (!sees) continue;
    const Chunk call = sample_of(batch, other);
    const GradientRoom room(call);
    const bf16* packed = gradient.packed + rooms[other] + kv_head * room.of_head();
    add_keys<ROWS>(gradient, call, other, kv_head, first, packed, room, scratch, sums);
  }
  for (int r = 0; r < ROWS; ++r)
    for (int part = 0; part < 2; ++part) {
      bf16* to = gradient.dkv + (((row + r) * 2 + part) * batch.kv_heads + kv_head) * dim;
      for (int64_t d = 0; d < dim; d += kLanes) narrow(to + d, load(sums + (r * 2 + part) * dim + d));
    }
}

// One of a sample's kv_heads * (query tiles + key tiles) items.
inline void grad_item(const Gradient& gradient, int64_t sample, int64_t item, const int64_t* rooms,
                      Scratch& scratch) {
  const Chunk call = sample_of(gradient.batch, sample);
  const GradientRoom room(call);
  const int64_t kv_head = item % call.kv_heads, tile = item / call.kv_heads;
  const bf16* packed = gradient.packed + rooms[sample] + kv_head * room.of_head();
  if (tile < call.tiles()) {
    int64_t at = tile * kMaxRows, left = call.rows * call.group() - at;
    if (left >= kMaxRows)
      return grad_queries<kMaxRows>(gradient, call, sample, kv_head, at, packed, room, scratch);
    for (; left > 0; --left, ++at)
      grad_queries<1>(gradient, call, sample, kv_head, at, packed, room, scratch);
    return;
  }
  int64_t at = call.context + (tile - call.tiles()) * kMaxRows, left = call.length() - at;
  if (left >= kMaxRows) return grad_keys<kMaxRows>(gradient, sample, kv_head, at, rooms, scratch);
  for (; left > 0; --left, ++at) grad_keys<1>(gradient, sample, kv_head, at, rooms, scratch);
}

// Makes a thread's room large enough for the tiles of every sample.
inline void fit_gradient(Scratch& scratch, const Batch& batch) {
  int64_t widest = 0;
  for (int64_t i = 0; i < batch.samples; ++i) {
    const Chunk call = sample_of(batch, i);
    const int64_t queries = 2 * GradientRoom::padded(call.rows * call.group());
    const int64_t keys = panels_of(call) * kColumns;
    if (queries > widest) widest = queries;
    if (keys > widest) widest = keys;
  }
  grow(scratch.weights, kMaxRows * widest);
  grow(scratch.queries, kMaxRows * batch.head_dim);
  grow(scratch.scores, kMaxRows * 2 * batch.head_dim);
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
          return kv_heads * (call.tiles() + (call.rows + kMaxRows - 1) / kMaxRows);
        },
        nothing,
        [&](int64_t i, int64_t item, int64_t) { grad_item(gradient, i, item, rooms.data(), scratch); });
  }
}

}  // extern "C"
