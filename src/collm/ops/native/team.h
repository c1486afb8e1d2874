// Threads of one parallel region that meet many times.

#pragma once

#include <immintrin.h>
#include <sched.h>

#include <atomic>

#include "common.h"

namespace {

// All threads of a region share one. A meeting costs a fraction of a microsecond while all of them run,
// against tens for a region of its own whose threads must be woken.
class Team {
 public:
  // Returns when every thread of the region has called it; `take` then begins anew.
  void meet() {
    const int64_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == omp_get_num_threads()) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins)
      if (spins < kSpins) _mm_pause();
      else sched_yield();  // Another process may have the core that one of the threads needs.
  }

  // The first work item that no thread has taken since the last meeting.
  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int kSpins = 1000;  // Some 20 microseconds.
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> round_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace
