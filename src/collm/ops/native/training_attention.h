// Attention of training: samples in packed rows see themselves and a prefix that they share.

#pragma once

#include "attention.h"
#include "team.h"

namespace {

// What one call computes; shapes as in the declarations below.
struct Batch {
  const bf16* q;
  int64_t q_stride;
  const bf16* kv;
  const int64_t *starts, *lengths, *prefixes;
  int64_t samples, rows, heads, kv_heads, head_dim, window;
  float* log_sums;

  int64_t group() const { return heads / kv_heads; }
  // Row of the batch that has position p of a sample.
  int64_t row_of(int64_t sample, int64_t p) const {
    return p < prefixes[sample] ? p : starts[sample] + p - prefixes[sample];
  }
  const bf16* key(int64_t sample, int64_t p, int64_t kv_head) const {
    return kv + (row_of(sample, p) * 2 * kv_heads + kv_head) * head_dim;
  }
};

// One sample as a chunk after its prefix. `packed` has its keys and values as a cache has them.
inline Chunk sample_of(const Batch& batch, int64_t sample, const bf16* packed = nullptr,
                       bf16* out = nullptr) {
  const int64_t start = batch.starts[sample], width = batch.heads * batch.head_dim;
  return {batch.q + start * batch.q_stride, batch.q_stride, packed, nullptr,
          out ? out + start * width : nullptr, batch.lengths[sample], batch.prefixes[sample],
          batch.heads, batch.kv_heads, batch.head_dim, 0, batch.window,
          1.0f / std::sqrt((float)batch.head_dim), batch.log_sums + start * batch.group(),
          batch.rows * batch.group()};
}

// Panels of 32 keys, and elements of a sample's packed keys and values.
inline int64_t panels_of(const Chunk& call) { return (call.length() + kColumns - 1) / kColumns; }
inline int64_t runs_of(const Chunk& call) { return (call.length() + kRun - 1) / kRun; }
inline int64_t room_of(const Chunk& call) {
  return runs_of(call) * call.kv_heads * 2 * run_size(call.head_dim);
}

// Packs one of the kv_heads * runs_of() items of a sample.
inline void pack_sample(const Batch& batch, const Chunk& call, int64_t sample, int64_t item,
                        bf16* packed) {
  const int64_t dim = call.head_dim, kv_head = item % call.kv_heads, first = item / call.kv_heads * kRun;
  const bf16 *keys[kRun], *values[kRun];
  for (int64_t i = 0; i < kRun; ++i) {
    keys[i] = first + i < call.length() ? batch.key(sample, first + i, kv_head) : nullptr;
    values[i] = keys[i] ? keys[i] + call.kv_heads * dim : nullptr;
  }
  bf16* to = run_of(packed, first, call.kv_heads, kv_head, dim);
  pack_across<kRun>(keys, dim, to);
  pack_along<kRun>(values, dim, to + run_size(dim));
}

// Calls `run(sample, item, room before the sample)` for this thread's part of the items of all samples,
// which are taken by whoever is free; `size` gives a sample's number of items, `room` its room.
template <typename Size, typename RoomOf, typename Run>
void take_items(Team& team, int64_t samples, Size size, RoomOf room, Run run) {
  int64_t begun = 0, before = 0, item = team.take();
  for (int64_t sample = 0; sample < samples;) {
    const int64_t count = size(sample);
    if (item - begun < count) {
      run(sample, item - begun, before);
      item = team.take();
    } else {
      begun += count, before += room(sample), ++sample;
    }
  }
}

}  // namespace

extern "C" {

// Causal attention within samples of packed rows, each after an optional prefix that they share.
//
// q [rows, heads, head_dim], rows q_stride apart; kv [rows, 2, kv_heads, head_dim]; starts, lengths,
// prefixes [samples]: first row and rows of each sample, and how many rows from 0 on it begins with; out
// [rows, heads * head_dim]; log_sums [kv_heads, rows, heads / kv_heads]: of each row's exponentials.
// window: keys a row may look back on, itself included, 0 for all. Rows in no sample are left alone.
void EXPORT(training_attention)(const bf16* q, int64_t q_stride, const bf16* kv, const int64_t* starts,
                                const int64_t* lengths, const int64_t* prefixes, int64_t samples,
                                int64_t rows, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                int64_t window, bf16* out, float* log_sums, int threads) {
  const Batch batch{q,    q_stride, kv,       starts,   lengths, prefixes, samples,
                    rows, heads,    kv_heads, head_dim, window,  log_sums};
  const auto room = [&](int64_t i) { return room_of(sample_of(batch, i)); };
  static thread_local std::vector<bf16> rooms;
  int64_t needed = 0;
  for (int64_t i = 0; i < samples; ++i) needed += room(i);
  grow(rooms, needed);
  bf16* packed = rooms.data();
  Team team;
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
    take_items(
        team, samples, [&](int64_t i) { return kv_heads * runs_of(sample_of(batch, i)); }, room,
        [&](int64_t i, int64_t item, int64_t before) {
          pack_sample(batch, sample_of(batch, i), i, item, packed + before);
        });
    team.meet();
    take_items(
        team, samples, [&](int64_t i) { return sample_of(batch, i).items(); }, room,
        [&](int64_t i, int64_t item, int64_t before) {
          attend_item(sample_of(batch, i, packed + before, out), item, scratch);
        });
  }
}

}  // extern "C"
