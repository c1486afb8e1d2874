// What the kernels share: bfloat16 and floats in AVX512 registers, and how work is split.
//
// bfloat16 travels as uint16_t. Only functions marked KERNEL use wide instructions; the library can be
// loaded on any x86-64 CPU, and collm_supported says whether the others may be called.

#pragma once

#include <immintrin.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define KERNEL __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define INLINE_KERNEL KERNEL __attribute__((always_inline)) static inline

using bf16 = uint16_t;

constexpr int kColumns = 32;  // Output columns of a packed block: two registers of accumulators.
constexpr int kMaxRows = 8;   // Rows of a register tile: 16 accumulators, which hide the latency.

INLINE_KERNEL __m512bh pairs(const void* address) { return (__m512bh)_mm512_loadu_si512(address); }

INLINE_KERNEL __m512 widen(const bf16* address) {
  const __m256i half = _mm256_loadu_si256((const __m256i*)address);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE_KERNEL void narrow(bf16* address, __m512 value) {
  _mm256_storeu_si256((__m256i*)address, (__m256i)_mm512_cvtneps_pbh(value));
}

// exp, to a few units in the last place of a float: 2^n times a polynomial on |r| <= ln(2) / 2.
INLINE_KERNEL __m512 exponential(__m512 x) {
  x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-104.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

inline void share(int64_t total, int64_t& first, int64_t& last) {
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  first = total * thread / threads;
  last = total * (thread + 1) / threads;
}

