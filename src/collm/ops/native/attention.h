// Attention over paged keys and values where they lie.

#pragma once

#include "cache.h"

namespace {

constexpr int64_t kLine = 64;  // Bytes of a cache line.

// Room of one thread for a tile.
struct Scratch {
  std::vector<const bf16*> runs;     // Where its keys lie.
  std::vector<const bf16*> next;     // Where those of the tile after it lie, as far as it asks for them.
  std::vector<uint32_t> queries;     // Of its rows, side by side.
  std::vector<float> scores;         // Of its rows, `width` from one to the next.
  std::vector<bf16> weights;         // The same as weights.
  int64_t width;

  void fit(int64_t num_runs, int64_t head_dim) {
    width = (num_runs + 1) * kRun;
    grow(runs, num_runs);
    grow(scores, kTallRows * width);
    grow(weights, kTallRows * width);
    grow(queries, kTallRows * head_dim / 2);
  }
};

// Tokens of one sequence that attend to what came before them and, causally, to each other.
struct Chunk {
  const bf16* q;
  int64_t q_stride;
  const bf16* cache;
  const int64_t* blocks;  // Null where the slots of `cache` follow one another.
  bf16* out;
  int64_t rows, context, heads, kv_heads, head_dim, block_size, window;
  float scale;
  float* log_sums = nullptr;  // For training: of each row's exponentials; see training_attention.h.
  int64_t log_sums_stride = 0;

  int64_t group() const { return heads / kv_heads; }
  int64_t length() const { return context + rows; }
  // Query rows of one key head that are best taken at once: one token's are too few for tile registers.
  int64_t rows_at_once() const { return rows > 1 ? kTallRows : kMaxRows; }
  int64_t tiles() const { return (rows * group() + rows_at_once() - 1) / rows_at_once(); }
  int64_t items() const { return kv_heads * tiles(); }

  const bf16* run(int64_t index, int64_t kv_head) const {
    const int64_t p = index * kRun;
    const int64_t slot = blocks ? blocks[p / block_size] * block_size + p % block_size : p;
    return run_of(cache, slot, kv_heads, kv_head, head_dim);
  }
};

// Lines of two places, asked for step by step.
struct Later {
  const uint8_t *one, *other;

  void ask() {
    ask_later(one), ask_later(other);
    one += kLine, other += kLine;
  }
};

// 16 scores from `p` on; those outside [first, last) as if they were infinitely low.
INLINE_KERNEL Floats scores_inside(const float* scores, int64_t p, int64_t first, int64_t last) {
  const Floats x = load(scores + p);
  if (p >= first && p + kLanes <= last) return x;
  return choose(lanes(first - p, last - p), x, all(-INFINITY));
}

struct Exponentials {
  float top, sum;
};

// Exponentials of scale * scores[first, last) below the highest into weights, which are next to nothing
// elsewhere in [begin, end).
KERNEL Exponentials soften(const float* scores, float scale, bf16* weights, int64_t begin, int64_t first,
                           int64_t last, int64_t end) {
  Floats top = all(-INFINITY);
  for (int64_t p = begin; p < end; p += kLanes)
    top = max(top, scores_inside(scores, p, first, last));
  const float top_score = highest(top);
  Floats sum = zeros();
  for (int64_t p = begin; p < end; p += kLanes) {
    const Floats below = sub(scores_inside(scores, p, first, last), all(top_score));
    const Floats weight = exponential(mul(below, all(scale)));
    sum = add(sum, weight);
    narrow(weights + p, weight);
  }
  return {scale * top_score, total(sum)};
}

// Scores of ROWS queries, side by side, for the keys of runs [begin, end): `width` from a row to the next.
// With ASKS, the values that belong to the keys are asked for meanwhile.
template <int ROWS, bool ASKS>
KERNEL void score(const uint32_t* queries, int64_t dim, const bf16* const* runs, int64_t begin, int64_t end,
                  float* scores, int64_t width) {
  for (int64_t i = begin; i < end; i += 2) {
    // A last run without a neighbour takes its own place as well; nobody reads those scores.
    const bf16* next = runs[i + 1 < end ? i + 1 : i];
    Floats low[ROWS], high[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = zeros();
    const auto *keys = (const uint32_t*)runs[i], *beside = (const uint32_t*)next;
    if constexpr (ASKS)
      multiply<ROWS>(queries, dim / 2, keys, beside, kRun, dim / 2, low, high,
                     Later{(const uint8_t*)values_of(runs[i], dim), (const uint8_t*)values_of(next, dim)});
    else
      multiply<ROWS>(queries, dim / 2, keys, beside, kRun, dim / 2, low, high);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      store(scores + r * width + i * kRun, low[r]);
      store(scores + r * width + i * kRun + kLanes, high[r]);
    }
  }
}

// Sums of the values of runs [begin, end) by ROWS rows of weights, for VECTORS * 16 elements from `d` on.
// With ASKS, as many lines of keys are asked for meanwhile, of the runs `next`.
template <int ROWS, int VECTORS, bool ASKS>
INLINE_KERNEL void gather(const uint32_t* weights, int64_t width, const bf16* const* runs, int64_t begin,
                          int64_t end, int64_t dim, int64_t d, const std::vector<const bf16*>& next,
                          Floats (*sums)[VECTORS]) {
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = zeros();
  for (int64_t i = begin; i < end; ++i) {
    const auto* values = (const uint32_t*)values_of(runs[i], dim) + d;
    const bool has_next = ASKS && i - begin < (int64_t)next.size();
    const auto* later = (const uint8_t*)(has_next ? next[i - begin] : runs[i]) + d * kRun * sizeof(bf16);
    for (int64_t pair = 0; pair < kRun / 2; ++pair, values += dim, later += VECTORS * kLine) {
      Words value[VECTORS];
      UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        value[v] = load_words(values + v * kLanes);
        if constexpr (ASKS) ask_later(later + v * kLine);
      }
      UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const Words weight = all_words((int32_t)weights[(r * width + i * kRun) / 2 + pair]);
        UNROLL
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = dot2(sums[r][v], value[v], weight);
      }
    }
  }
}

KERNEL void write_share(const float* sums, float share, bf16* to) {
  narrow(to, mul(load(sums), all(share)));
  narrow(to + kLanes, mul(load(sums + kLanes), all(share)));
}

// Query rows of one key head from `first` on. A row is a position and one of the heads that share the key
// head, heads fastest.
struct QueryRows {
  const Chunk& call;
  int64_t kv_head, first;

  int64_t position(int64_t r) const { return (first + r) / call.group(); }
  int64_t head(int64_t r) const { return kv_head * call.group() + (first + r) % call.group(); }
  bf16* out(int64_t r) const { return call.out + (position(r) * call.heads + head(r)) * call.head_dim; }
  // Keys that a row sees.
  int64_t end(int64_t r) const { return call.context + position(r) + 1; }
  int64_t start(int64_t r) const {
    return call.window > 0 && end(r) > call.window ? end(r) - call.window : 0;
  }
  // Runs of the keys that `rows` of them see.
  int64_t first_run() const { return start(0) / kRun; }
  int64_t last_run(int64_t rows) const { return (end(rows - 1) + kRun - 1) / kRun; }

  // Lays queries side by side.
  void copy(int64_t rows, bf16* to) const {
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(to + r * call.head_dim, call.q + position(r) * call.q_stride + head(r) * call.head_dim,
                  sizeof(bf16) * call.head_dim);
  }

  // Lays queries and runs ready.
  void prepare(Scratch& scratch, int64_t rows) const {
    copy(rows, (bf16*)scratch.queries.data());
    for (int64_t i = first_run(); i < last_run(rows); ++i) scratch.runs[i] = call.run(i, kv_head);
  }

  // Turns a row's scores into weights; returns what their sum has to be multiplied by.
  float weigh(Scratch& scratch, int64_t r, int64_t rows) const {
    const int64_t at = r * scratch.width;
    const Exponentials done = soften(scratch.scores.data() + at, call.scale, scratch.weights.data() + at,
                                     first_run() * kRun, start(r), end(r), last_run(rows) * kRun);
    if (call.log_sums)
      call.log_sums[kv_head * call.log_sums_stride + first + r] = done.top + std::log(done.sum);
    return 1.0f / done.sum;
  }
};

// ROWS of them. With ASKS it asks for memory ahead of what it computes: its values while it has its keys, then
// the keys of the tile after it.
template <int ROWS, bool ASKS>
struct Tile : QueryRows {
  // Writes VECTORS * 16 elements of the outputs from `d` on.
  template <int VECTORS>
  KERNEL void write(const Scratch& scratch, int64_t width, int64_t first_run, int64_t last_run,
                    const float* shares, int64_t d) const {
    Floats sums[ROWS][VECTORS];
    gather<ROWS, VECTORS, ASKS>((const uint32_t*)scratch.weights.data(), width, scratch.runs.data(),
                                first_run, last_run, call.head_dim, d, scratch.next, sums);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      for (int v = 0; v < VECTORS; ++v)
        narrow(out(r) + d + v * kLanes, mul(sums[r][v], all(shares[r])));
    }
  }

  void attend(Scratch& scratch) const {
    const int64_t dim = call.head_dim, width = scratch.width, begin = first_run(), last = last_run(ROWS);
    prepare(scratch, ROWS);
    score<ROWS, ASKS>(scratch.queries.data(), dim, scratch.runs.data(), begin, last,
                      scratch.scores.data(), width);
    float shares[ROWS];
    for (int r = 0; r < ROWS; ++r) shares[r] = weigh(scratch, r, ROWS);
    // With few rows, memory is read in order; with more, sums for as many elements would not fit.
    constexpr int kWide = ROWS * 4 <= kSums ? 4 : 2;
    int64_t d = 0;
    for (; d + kWide * kLanes <= dim; d += kWide * kLanes)
      write<kWide>(scratch, width, begin, last, shares, d);
    for (; d < dim; d += kColumns) write<2>(scratch, width, begin, last, shares, d);
  }
};

template <int ROWS, bool ASKS>
void attend_rows(const Chunk& call, int64_t kv_head, int64_t first, Scratch& scratch, int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return attend_rows<ROWS - 1, ASKS>(call, kv_head, first, scratch, rows);
  Tile<ROWS, ASKS>{{call, kv_head, first}}.attend(scratch);
}

// Up to kTallRows of them by tile registers; rows of a register that are not there hold anything.
inline void attend_with_tiles(const QueryRows& query, int64_t rows, Scratch& scratch) {
  const int64_t dim = query.call.head_dim, width = scratch.width;
  const int64_t begin = query.first_run(), last = query.last_run(rows);
  const bf16* const* runs = scratch.runs.data();
  query.prepare(scratch, rows);
  {
    const Tiles tiles(kTallRows);
    for (int64_t i = begin; i < last; i += 2)
      multiply_tiles<false>(scratch.queries.data(), dim / 2, (const uint32_t*)runs[i],
                            (const uint32_t*)runs[i + 1 < last ? i + 1 : i], kRun, dim / 2, kTallRows,
                            scratch.scores.data() + i * kRun, width);
  }
  float shares[kTallRows];
  for (int64_t r = 0; r < rows; ++r) shares[r] = query.weigh(scratch, r, rows);
  const HalfTiles tiles;
  alignas(64) float sums[kTallRows * kColumns];
  for (int64_t d = 0; d < dim; d += kColumns) {
    gather_tiles(scratch.weights.data(), width, runs, run_size(dim) + 2 * d, begin, last, dim, sums);
    for (int64_t r = 0; r < rows; ++r) write_share(sums + r * kColumns, shares[r], query.out(r) + d);
  }
}

// Attends one of the items() of a chunk. The last rows see the most keys; they come first, so that no
// thread ends with a long one.
template <bool ASKS = false>
void attend_item(const Chunk& call, int64_t item, Scratch& scratch) {
  scratch.fit((call.length() + kRun - 1) / kRun, call.head_dim);
  const int64_t kv_head = item % call.kv_heads;
  const int64_t first = (call.tiles() - 1 - item / call.kv_heads) * call.rows_at_once();
  const int64_t left = call.rows * call.group() - first;
  if (kHasTiles && call.rows > 1)
    return attend_with_tiles({call, kv_head, first}, left < kTallRows ? left : kTallRows, scratch);
  attend_rows<kMaxRows, ASKS>(call, kv_head, first, scratch, left < kMaxRows ? left : kMaxRows);
}

// Attention of decoding rows; shapes as in the declaration of decode_attention.
struct Decode {
  const int64_t* blocks;
  int64_t max_blocks;
  const int64_t* lengths;
  Chunk chunk;  // The first row, as a chunk of one token.

  int64_t items(int64_t rows) const { return rows * chunk.items(); }

  // The row of one of items(), as a chunk.
  Chunk chunk_of(int64_t item) const {
    const int64_t row = item / chunk.items();
    Chunk one = chunk;
    one.q += row * chunk.q_stride, one.out += row * chunk.heads * chunk.head_dim;
    one.blocks = blocks + row * max_blocks, one.context = lengths[row] - 1;
    return one;
  }

  // Attends one of items(), after which this thread attends `next`, or -1. With few rows to a key a thread
  // would wait for memory and compute in turn; asking for what comes next has both at once.
  void attend(int64_t item, int64_t next, Scratch& scratch) const {
    scratch.next.clear();
    if (next >= 0) {
      const Chunk then = chunk_of(next);
      const int64_t first = then.window > 0 && then.length() > then.window ? then.length() - then.window : 0;
      for (int64_t i = first / kRun; i * kRun < then.length(); ++i)
        scratch.next.push_back(then.run(i, next % then.kv_heads));
    }
    attend_item<true>(chunk_of(item), item % chunk.items(), scratch);
  }
};

}  // namespace

extern "C" {

// Attention of one new token per row over its paged keys, that token's own included.
//
// q [rows, heads, head_dim], rows q_stride apart; cache as cache.h says; blocks [rows, max_blocks], of
// block_size slots, a multiple of 16; lengths [rows]: keys of each row; out [rows, heads * head_dim];
// window: keys a row may look back on, itself included, 0 for all. head_dim is a multiple of 32.
void EXPORT(decode_attention)(const bf16* q, int64_t q_stride, const bf16* cache, const int64_t* blocks,
                            int64_t max_blocks, const int64_t* lengths, bf16* out, int64_t rows,
                            int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                            int64_t window, float scale, int threads) {
  const Decode call{blocks, max_blocks, lengths,
                    {q, q_stride, cache, blocks, out, 1, 0, heads, kv_heads, head_dim, block_size, window,
                     scale}};
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < call.items(rows); ++item) call.attend(item, -1, scratch);
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
  const Chunk call{q,     q_stride, cache,    blocks,     out,    rows, context,
                   heads, kv_heads, head_dim, block_size, window, scale};
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
#pragma omp for schedule(dynamic, 4)
    for (int64_t item = 0; item < call.items(); ++item) attend_item(call, item, scratch);
  }
}

}  // extern "C"
