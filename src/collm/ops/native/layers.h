// All decoder layers of one serving step in one parallel region.

#pragma once

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "team.h"

namespace {

// A linear layer: packed weights, and the adapter factors of all slots. ops/native/layers.py mirrors
// this structure and those below.
struct Packed {
  int64_t format, in, out, rank;
  const uint8_t* data;
  const bf16* bias;  // Or null.
  const bf16 *a, *b;  // B in blocks.
  const int32_t* ranks;  // Of what each slot holds.
  int64_t num_parts, part_ends[3];  // Of linears fused into one, each with a part of the ranks.
};

struct Layer {
  const bf16 *attention_norm, *mlp_norm;
  const bf16 *q_norm, *k_norm;  // Both null in models without.
  Packed qkv, o, gate_up, down;
  bf16* cache;
  int64_t plan;  // Which of the step's plans has its window.
};

// A chunk of several tokens of one sequence.
struct Span {
  int64_t start, stop, context;
  const int64_t* blocks;
};

// Where the rows find their keys, in layers of one window.
struct Plan {
  int64_t window, num_decode, max_blocks, num_spans;
  const int64_t *decode_blocks, *decode_lengths;
  const Span* spans;
};

struct Step {
  int64_t rows, hidden, heads, kv_heads, head_dim, block_size, num_layers;
  bf16* x;  // [rows, hidden]: residual stream, changed in place.
  const bf16 *cos, *sin;  // [rows, head_dim]
  const int64_t* cache_rows;
  const int32_t* slots;  // Or null, if no row has an adapter.
  const Plan* plans;
  double eps;

  int64_t width() const { return heads * head_dim; }
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

constexpr int64_t kPrivateRows = 8;  // Rows that each thread norms and rounds for itself, to meet less.

// Room of one thread, or of all.
struct Room {
  std::vector<bf16> normed;
  std::vector<int8_t> bytes;
  std::vector<float> numbers;

  void fit(int64_t rows, int64_t widest) {
    grow(normed, rows * widest);
    grow(bytes, rows * widest);
    grow(numbers, 2 * rows * (widest / kGroup));
  }
};

struct SharedRoom : Room {
  std::vector<bf16> qkv, attended, gate_up, gated;
  std::vector<bf16> projected;
  std::vector<Run> runs;
  std::vector<float> added;
};

// A step as one of its threads sees it.
struct Work {
  const Step& step;
  Team& team;
  SharedRoom& shared;
  Room& own;
  Scratch& scratch;

  bool is_private() const { return step.rows <= kPrivateRows; }
  Room& room() const { return is_private() ? own : shared; }
  // The rows that this thread prepares.
  void prepared(int64_t& first, int64_t& last) const {
    first = 0, last = step.rows;
    if (!is_private()) share(step.rows, first, last);
  }
};

// A linear layer's call, with what its tiles need.
struct Product {
  Format format;
  Linear call;
  Bytes rounded;
  Adapters adapters;
  bool is_adapted;

  const Adapters* own_adapters() const { return is_adapted ? &adapters : nullptr; }

  // Computes rows of a block from `row` to `end` at most; returns how many.
  int64_t rows(int64_t row, int64_t end, int64_t block) const {
    return some_rows(format, call, rounded, own_adapters(), row, end, block);
  }

  // For few rows, B is read slot by slot before the weights are: a tile that read a little of each slot
  // would do so at two thirds of the speed, and keep its weights waiting.
  void add_ahead_of(int64_t first, int64_t last, const std::vector<Run>& runs) const {
    if (!is_adapted || !adapters.sums) return;
    adapters.await();
    for (const Run& run : runs) add_ahead<kMaxRows>(adapters, call.out, run, first, last);
  }

  void blocks(int64_t first, int64_t last) const {
    all_rows(format, call, rounded, own_adapters(), first, last);
  }
};

// Projects rows on their adapters; threads share the work, and need it when their first tile is done.
inline void project_runs(const Work& work, const bf16* x, int64_t in, Adapters& adapters) {
  project_share(x, in, adapters, work.shared.runs);
  adapters.team = &work.team, adapters.arrival = work.team.arrive();
  if (work.is_private()) adapters.sums = work.shared.added.data();
}

// Rounds the inputs of a linear layer and projects them on the adapters. `x` is there for all threads.
inline Product product(const Work& work, const Packed& w, const bf16* x, const bf16* residual, bf16* y) {
  const Step& step = work.step;
  const Linear call{x, w.data, w.bias, y, step.rows, w.in, w.out, residual};
  const auto format = (Format)w.format;
  Room& room = work.room();
  const int64_t groups = format == kInt4 ? w.in / kGroup : 1;
  const Bytes rounded{room.bytes.data(), room.numbers.data(), room.numbers.data() + step.rows * groups,
                      groups};
  Adapters adapters{step.slots, w.a, w.b, w.rank, work.shared.projected.data(),
                    w.part_ends, w.num_parts, true, w.ranks};
  int64_t first, last;
  if (format != kBf16) {
    work.prepared(first, last);
    for (int64_t row = first; row < last; ++row) round_row(format, call, rounded, row);
  }
  if (step.slots) project_runs(work, x, w.in, adapters);
  if (format != kBf16 && !work.is_private()) work.team.meet();
  return {format, call, rounded, adapters, step.slots != nullptr};
}

inline const bf16* normalize(const Work& work, const bf16* weight) {
  const int64_t hidden = work.step.hidden;
  bf16* normed = work.room().normed.data();
  int64_t first, last;
  work.prepared(first, last);
  for (int64_t row = first; row < last; ++row)
    normalize_row(work.step.x + row * hidden, weight, normed + row * hidden, hidden,
                  (float)work.step.eps);
  if (!work.is_private()) work.team.meet();
  return normed;
}

// Norms, rotates and stores one head of all rows: a query's in place, others in the cache.
inline void place_head(const Work& work, const Layer& layer, int64_t head) {
  const Step& step = work.step;
  const int64_t dim = step.head_dim, kv_head = head - step.heads;
  const bool is_query = kv_head < 0, is_value = kv_head >= step.kv_heads;
  const bf16* norm = is_query ? layer.q_norm : is_value ? nullptr : layer.k_norm;
  for (int64_t row = 0; row < step.rows; ++row) {
    bf16* x = work.shared.qkv.data() + row * step.qkv_width() + head * dim;
    if (norm) normalize_row(x, norm, x, dim, (float)step.eps);
    if (!is_value) rotate_head(x, step.cos + row * dim, step.sin + row * dim, x, dim, 1.0f);
    if (is_query) continue;
    const int64_t slot = step.cache_rows[row];
    bf16* run = run_of(layer.cache, slot, step.kv_heads, kv_head % step.kv_heads, dim);
    is_value ? place_value(x, dim, slot, run) : place_key(x, dim, slot, run);
  }
}

// Queries, keys and values; threads share heads, so that each can go on with what it computed.
inline void project_heads(const Work& work, const Layer& layer) {
  const Step& step = work.step;
  const bf16* normed = normalize(work, layer.attention_norm);
  const Product qkv = product(work, layer.qkv, normed, nullptr, work.shared.qkv.data());
  const int64_t blocks = step.head_dim / kColumns;
  int64_t first, last;
  share(step.heads + 2 * step.kv_heads, first, last);
  qkv.add_ahead_of(first * blocks, last * blocks, work.shared.runs);
  for (int64_t head = first; head < last; ++head) {
    qkv.blocks(head * blocks, (head + 1) * blocks);
    place_head(work, layer, head);
  }
  work.team.meet();
}

// A chunk of `rows` tokens from row `start` of the step on.
inline Chunk chunk_of(const Work& work, const Layer& layer, const int64_t* blocks, int64_t start,
                      int64_t rows, int64_t context) {
  const Step& step = work.step;
  return {work.shared.qkv.data() + start * step.qkv_width(), step.qkv_width(), layer.cache, blocks,
          work.shared.attended.data() + start * step.width(), rows, context, step.heads, step.kv_heads,
          step.head_dim, step.block_size, step.plans[layer.plan].window,
          1.0f / std::sqrt((float)step.head_dim)};
}

// Decoding rows, then chunks of several tokens: items go to whoever is free.
inline void attend(const Work& work, const Layer& layer) {
  const Plan& plan = work.step.plans[layer.plan];
  const Decode decode{plan.decode_blocks, plan.max_blocks, plan.decode_lengths,
                      chunk_of(work, layer, plan.decode_blocks, 0, 1, 0)};
  int64_t item = work.team.take(), begun = decode.items(plan.num_decode);
  while (item < begun) {
    const int64_t next = work.team.take();
    decode.attend(item, next < begun ? next : -1, work.scratch);
    item = next;
  }
  for (int64_t i = 0; i < plan.num_spans; ++i) {
    const Span& span = plan.spans[i];
    const Chunk chunk =
        chunk_of(work, layer, span.blocks, span.start, span.stop - span.start, span.context);
    for (; item < begun + chunk.items(); item = work.team.take())
      attend_item(chunk, item - begun, work.scratch);
    begun += chunk.items();
  }
  work.team.meet();
}

// x += o(attention(norm(x)))
inline void attention_half(const Work& work, const Layer& layer) {
  project_heads(work, layer);
  attend(work, layer);
  const Product o =
      product(work, layer.o, work.shared.attended.data(), work.step.x, work.step.x);
  int64_t first, last;
  share(layer.o.out / kColumns, first, last);
  o.add_ahead_of(first, last, work.shared.runs);
  o.blocks(first, last);
  work.team.meet();
}

// x += down(silu(gate) * up); a thread computes the same columns of gate and up.
inline void mlp_half(const Work& work, const Layer& layer) {
  const Step& step = work.step;
  const int64_t inner = layer.down.in;
  const bf16* normed = normalize(work, layer.mlp_norm);
  bf16 *gate_up = work.shared.gate_up.data(), *gated = work.shared.gated.data();
  const Product both = product(work, layer.gate_up, normed, nullptr, gate_up);
  int64_t first, last;
  const int64_t ups = inner / kColumns;
  share(ups, first, last);
  both.add_ahead_of(first, last, work.shared.runs);
  both.add_ahead_of(ups + first, ups + last, work.shared.runs);
  by_rows_in_cache(step.rows, step.hidden, [&](int64_t begin, int64_t end) {
    const Tiles tiles(step.rows);
    for (int64_t block = first; block < last; ++block)
      for (int64_t row = begin; row < end;) {
        both.rows(row, end, ups + block);
        for (const int64_t next = row + both.rows(row, end, block); row < next; ++row) {
          const bf16* gates = gate_up + row * 2 * inner + block * kColumns;
          gate(gates, gates + inner, gated + row * inner + block * kColumns, kColumns);
        }
      }
  });
  work.team.meet();
  const Product down = product(work, layer.down, gated, step.x, step.x);
  share(layer.down.out / kColumns, first, last);
  down.add_ahead_of(first, last, work.shared.runs);
  down.blocks(first, last);
  work.team.meet();
}

// Makes the shared room large enough for every layer; returns the most inputs of any linear.
inline int64_t fit(SharedRoom& room, const Step& step, const Layer* layers) {
  int64_t widest = step.hidden, inner = 0, rank = 0, out = 0;
  for (int64_t i = 0; i < step.num_layers; ++i) {
    const Layer& layer = layers[i];
    if (layer.down.in > inner) inner = layer.down.in;
    for (const Packed* w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      if (w->in > widest) widest = w->in;
      if (w->out > out) out = w->out;
      if (w->rank > rank) rank = w->rank;
    }
  }
  room.fit(step.rows, widest);
  grow(room.qkv, step.rows * step.qkv_width());
  grow(room.attended, step.rows * step.width());
  grow(room.gate_up, step.rows * 2 * inner);
  grow(room.gated, step.rows * inner);
  if (!step.slots) return widest;
  grow(room.projected, step.rows * rank);
  if (step.rows <= kPrivateRows) grow(room.added, step.rows * out);
  find_runs(step.slots, step.rows, room.runs);
  return widest;
}

}  // namespace

extern "C" {

// Runs all layers over the rows of a step: reads and writes the caches, changes step->x.
void EXPORT(run_layers)(const Layer* layers, const Step* step, int threads) {
  static thread_local SharedRoom shared;
  const int64_t widest = fit(shared, *step, layers);
  Team team;
  SharedRoom& room = shared;  // That of the calling thread, in all threads.
#pragma omp parallel num_threads(threads)
  {
    static thread_local Room own;
    static thread_local Scratch scratch;
    if (step->rows <= kPrivateRows) own.fit(step->rows, widest);
    const Work work{*step, team, room, own, scratch};
    for (int64_t i = 0; i < step->num_layers; ++i) {
      attention_half(work, layers[i]);
      mlp_half(work, layers[i]);
    }
  }
}

}  // extern "C"
