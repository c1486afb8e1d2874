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
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) pause(spins);
  }

  // Half a meeting: says that this thread has done its part, and returns what to await before the parts of
  // all are used. Every thread arrives once between two meetings, or none does.
  int64_t arrive() {
    const int64_t threads = omp_get_num_threads();
    return (parts_.fetch_add(1, std::memory_order_acq_rel) / threads + 1) * threads;
  }

  void await(int64_t arrival) const {
    for (int spins = 0; parts_.load(std::memory_order_acquire) < arrival; ++spins) pause(spins);
  }

  // The first work item that no thread has taken since the last meeting.
  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int kSpins = 1000;  // Some 20 microseconds.

  static void pause(int spins) {
    if (spins < kSpins) _mm_pause();
    else sched_yield();  // Another process may have the core that one of the threads needs.
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> round_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> parts_{0};
};

}  // namespace
