// Segmented LoRA: what adapters add to the rows of a linear layer, in the same pass.

#pragma once

#include "team.h"

namespace {

// Rows that follow one another and share an adapter.
struct Run {
  int64_t row, rows;
};

constexpr int64_t kRunRows = 8;  // Most rows of a run, so that threads can share those of one adapter.
constexpr int kTileRows = 4;     // Rows and ranks whose products are summed at once:
constexpr int kTileRanks = 4;    // of eight loads, sixteen sums.

// Adapter factors of all slots, and the projections of a call's rows on them.
struct Adapters {
  const int32_t* slots;  // Of each row, -1 for none.
  const bf16* a;         // [slots, rank, in]
  const bf16* b;         // [slots, rank, out], or in blocks
  int64_t rank;          // What slots have room for, all parts together.
  bf16* t;  // x A^T, rounded [rows, rank]
  // Outputs that parts of a fused layer end at, or null for one part. Each part has its own share of the
  // ranks, and B is zero elsewhere.
  const int64_t* part_ends = nullptr;
  int64_t num_parts = 1;
  // Whether B lies in blocks of 32 outputs [slots, out / 32, ranks of a part, 32]: read in one piece.
  bool in_blocks = false;
  // The rank of what each slot holds, of every part; null if all are full. It lies at the beginning of its
  // slot as if that had no room for more, so that nothing else is read.
  const int32_t* ranks = nullptr;
  // Threads that write t, and how far all must be; null if t is there.
  const Team* team = nullptr;
  int64_t arrival = 0;
  // Room for t B^T where it is computed ahead of the product [rows, out], or null.
  float* sums = nullptr;
  // What slots have room for, each part; of a call without adapters there are no parts.
  int64_t part_rank = num_parts ? rank / num_parts : 0;

  void await() const {
    if (team) team->await(arrival);
  }

  // Of a slot's adapter: of every part, and of all together.
  int64_t part_rank_of(int64_t slot) const { return ranks ? ranks[slot] : part_rank; }
  int64_t rank_of(int64_t slot) const { return part_rank_of(slot) * num_parts; }

  int64_t num_chunks(int64_t slot) const { return (rank_of(slot) + kTileRanks - 1) / kTileRanks; }

  // The ranks [first, last) of a slot that reach an output.
  void ranks_of(int64_t slot, int64_t output, int64_t& first, int64_t& last) const {
    int64_t part = 0;
    while (part + 1 < num_parts && output >= part_ends[part]) ++part;
    first = part * part_rank_of(slot), last = first + part_rank_of(slot);
  }
};

// The runs of all rows that have an adapter.
inline void find_runs(const int32_t* slots, int64_t rows, std::vector<Run>& runs) {
  runs.clear();
  for (int64_t row = 0; row < rows; ++row) {
    if (slots[row] < 0) continue;
    const bool continues = row > 0 && slots[row - 1] == slots[row] && runs.back().rows < kRunRows;
    if (continues) ++runs.back().rows;
    else runs.push_back({row, 1});
  }
}

// to[r, j] = x[r] . a[j], rounded, of ROWS rows and RANKS ranks; `rank` from a row of `to` to the next.
// Asks for as many ranks of A that come next: with few rows it is memory that this waits for.
template <int ROWS, int RANKS>
KERNEL void project_tile(const bf16* x, const bf16* a, int64_t in, bf16* to, int64_t rank, int64_t rows,
                         int64_t ranks) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return project_tile<ROWS - 1, RANKS>(x, a, in, to, rank, rows, ranks);
  if constexpr (RANKS > 1)
    if (ranks < RANKS) return project_tile<ROWS, RANKS - 1>(x, a, in, to, rank, rows, ranks);
  Floats sums[ROWS][RANKS];
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int j = 0; j < RANKS; ++j) sums[r][j] = zeros();
  for (int64_t k = 0; k < in; k += kColumns) {
    Words inputs[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) inputs[r] = load_words(x + r * in + k);
    UNROLL
    for (int j = 0; j < RANKS; ++j) {
      const Words factors = load_words(a + j * in + k);
      ask_later(a + (j + RANKS) * in + k);
      UNROLL
      for (int r = 0; r < ROWS; ++r) sums[r][j] = dot2(sums[r][j], inputs[r], factors);
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    UNROLL
    for (int j = 0; j < RANKS; ++j) to[r * rank + j] = rounded(total(sums[r][j]));
}

// Projects a run of rows of x [rows, in] on chunk `chunk` of the ranks of its adapter.
inline void project(const bf16* x, int64_t in, const Adapters& adapters, const Run& run, int64_t chunk) {
  const int64_t slot = adapters.slots[run.row], j = chunk * kTileRanks, rank = adapters.rank;
  for (int64_t row = run.row; row < run.row + run.rows; row += kTileRows)
    project_tile<kTileRows, kTileRanks>(x + row * in, adapters.a + (slot * rank + j) * in, in,
                                        adapters.t + row * rank + j, rank, run.row + run.rows - row,
                                        adapters.rank_of(slot) - j);
}

// Projects this thread's share of all runs, chunk by chunk.
inline void project_share(const bf16* x, int64_t in, const Adapters& adapters,
                          const std::vector<Run>& runs) {
  int64_t all = 0, first, last;
  for (const Run& run : runs) all += adapters.num_chunks(adapters.slots[run.row]);
  share(all, first, last);
  int64_t begun = 0;
  for (const Run& run : runs) {
    const int64_t end = begun + adapters.num_chunks(adapters.slots[run.row]);
    for (; first < end && first < last; ++first) project(x, in, adapters, run, first - begun);
    begun = end;
  }
}

// Adds t B^T of ROWS rows that share an adapter to their sums of 32 columns.
template <int ROWS>
INLINE_KERNEL void add_adapter(const Adapters& adapters, int64_t out, int64_t row, int64_t column,
                               Floats* low, Floats* high) {
  const int64_t slot = adapters.slots[row], step = adapters.in_blocks ? kColumns : out;
  int64_t j, last;
  adapters.ranks_of(slot, column, j, last);
  const bf16* t = adapters.t + row * adapters.rank;
  const bf16* b = adapters.b;
  if (adapters.in_blocks) b += slot * out * adapters.part_rank + column * (last - j);
  else b += (slot * adapters.rank + j) * out + column;
  Words b_low, b_high;
  for (; j + 1 < last; j += 2, b += 2 * step) {
    interleave(load_words(b), load_words(b + step), b_low, b_high);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const Words pair = all_words(*(const int32_t*)(t + r * adapters.rank + j));
      low[r] = dot2(low[r], b_low, pair);
      high[r] = dot2(high[r], b_high, pair);
    }
  }
  if (j == last) return;
  interleave(load_words(b), all_words(0), b_low, b_high);
  UNROLL
  for (int r = 0; r < ROWS; ++r) {
    const Words single = all_words(t[r * adapters.rank + j]);
    low[r] = dot2(low[r], b_low, single);
    high[r] = dot2(high[r], b_high, single);
  }
}

// Computes what adapters add to ROWS rows of a run, for packed blocks [block, last).
template <int ROWS>
KERNEL void add_ahead(const Adapters& adapters, int64_t out, const Run& run, int64_t block, int64_t last) {
  if constexpr (ROWS > 1)
    if (run.rows < ROWS) return add_ahead<ROWS - 1>(adapters, out, run, block, last);
  for (; block < last; ++block) {
    Floats low[ROWS], high[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) low[r] = high[r] = zeros();
    add_adapter<ROWS>(adapters, out, run.row, block * kColumns, low, high);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      float* to = adapters.sums + (run.row + r) * out + block * kColumns;
      store(to, low[r]), store(to + kLanes, high[r]);
    }
  }
}

// Adds what was computed ahead for one row.
INLINE_KERNEL void add_sums(const Adapters& adapters, int64_t out, int64_t row, int64_t column,
                            Floats& low, Floats& high) {
  const float* sums = adapters.sums + row * out + column;
  low = add(low, load(sums)), high = add(high, load(sums + kLanes));
}

// Adds what their adapters say to a tile's rows.
template <int ROWS>
INLINE_KERNEL void add_adapters(const Adapters& adapters, int64_t out, int64_t row, int64_t column,
                                Floats* low, Floats* high) {
  const int32_t* slots = adapters.slots + row;
  if (adapters.sums) {
    UNROLL
    for (int r = 0; r < ROWS; ++r)
      if (slots[r] >= 0) add_sums(adapters, out, row + r, column, low[r], high[r]);
    return;
  }
  adapters.await();
  bool is_shared = true;
  for (int r = 1; r < ROWS; ++r) is_shared &= slots[r] == slots[0];
  if (is_shared) {
    if (slots[0] >= 0) add_adapter<ROWS>(adapters, out, row, column, low, high);
    return;
  }
  UNROLL
  for (int r = 0; r < ROWS; ++r)
    if (slots[r] >= 0) add_adapter<1>(adapters, out, row + r, column, low + r, high + r);
}

}  // namespace
