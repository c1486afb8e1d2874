// Vectors of 16 lanes for CPUs with AVX512-BF16 and AVX512-VNNI; avx2.h has the same for others.
//
// Only functions marked KERNEL use wide instructions, so the library can be loaded on any x86-64 CPU;
// ops/native/library.py calls those of a path only where the CPU has what collm_cpu asks for.

#pragma once

#include <immintrin.h>

#include <cstdint>

#define EXPORT(name) collm_avx512_##name
#define KERNEL \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,fma")))
#define INLINE_KERNEL KERNEL __attribute__((always_inline)) static inline

using bf16 = uint16_t;
using Floats = __m512;   // 16 floats.
using Words = __m512i;   // 16 integers of 32 bits, or what is packed in them.
using Mask = __mmask16;  // Some of 16 lanes.

constexpr int kMaxRows = 8;  // Rows of a register tile of 32 columns: 16 sums, which hide the latency.
constexpr int kSums = 16;    // Sums that fit beside what they are made from.

INLINE_KERNEL Floats zeros() { return _mm512_setzero_ps(); }
INLINE_KERNEL Floats all(float value) { return _mm512_set1_ps(value); }
INLINE_KERNEL Floats load(const float* address) { return _mm512_loadu_ps(address); }
INLINE_KERNEL void store(float* address, Floats x) { _mm512_storeu_ps(address, x); }
INLINE_KERNEL Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
INLINE_KERNEL Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
INLINE_KERNEL Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
INLINE_KERNEL Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
INLINE_KERNEL Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE_KERNEL Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE_KERNEL Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
INLINE_KERNEL Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
INLINE_KERNEL Floats nearest(Floats x) { return _mm512_roundscale_ps(x, 8); }
INLINE_KERNEL float total(Floats x) { return _mm512_reduce_add_ps(x); }
INLINE_KERNEL float highest(Floats x) { return _mm512_reduce_max_ps(x); }

// x times 2^n, n whole.
INLINE_KERNEL Floats shift_exponent(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }

INLINE_KERNEL Words load_words(const void* address) { return _mm512_loadu_si512(address); }
INLINE_KERNEL void store_words(void* address, Words x) { _mm512_storeu_si512(address, x); }
INLINE_KERNEL Words all_words(int32_t value) { return _mm512_set1_epi32(value); }
INLINE_KERNEL Words both(Words a, Words b) { return _mm512_and_si512(a, b); }
template <int BITS>
INLINE_KERNEL Words right(Words x) { return _mm512_srli_epi32(x, BITS); }
INLINE_KERNEL Words plus(Words a, Words b) { return _mm512_add_epi32(a, b); }
INLINE_KERNEL Words minus(Words a, Words b) { return _mm512_sub_epi32(a, b); }
INLINE_KERNEL Words larger(Words a, Words b) { return _mm512_max_epi32(a, b); }
INLINE_KERNEL int32_t largest(Words x) { return _mm512_reduce_max_epi32(x); }
INLINE_KERNEL int32_t total(Words x) { return _mm512_reduce_add_epi32(x); }
INLINE_KERNEL Floats to_floats(Words x) { return _mm512_cvtepi32_ps(x); }
INLINE_KERNEL Words to_words(Floats x) { return _mm512_cvtps_epi32(x); }
INLINE_KERNEL Words bits(Floats x) { return _mm512_castps_si512(x); }

// The lowest byte of each word.
INLINE_KERNEL void store_bytes(int8_t* address, Words x) {
  _mm_storeu_si128((__m128i*)address, _mm512_cvtsepi32_epi8(x));
}

// bfloat16 to and from floats.
INLINE_KERNEL Floats widen(const bf16* address) {
  const __m256i half = _mm256_loadu_si256((const __m256i*)address);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE_KERNEL void narrow(bf16* address, Floats x) {
  _mm256_storeu_si256((__m256i*)address, (__m256i)_mm512_cvtneps_pbh(x));
}

// Bfloat16 values, infinities and NaN as zero: their exponent is all ones.
INLINE_KERNEL Words finite_or_zero(Words x) {
  const Words exponent = _mm512_set1_epi16(0x7f80);
  return _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(both(x, exponent), exponent), x);
}

// Two rows of 32 bfloat16 as pairs of what lies at the same place: of the first 16 places, of the last.
INLINE_KERNEL void interleave(Words a, Words b, Words& low, Words& high) {
  const Words order = _mm512_add_epi32(
      _mm512_set1_epi32(0x00200000),
      _mm512_mullo_epi32(_mm512_set1_epi32(0x00010001),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
  low = _mm512_permutex2var_epi16(a, order, b);
  high = _mm512_permutex2var_epi16(a, plus(order, all_words(0x00100010)), b);
}

// to[j, i], of 8 x 8 pairs of words out of 16 x 16, becomes from[i, j] with its two middle halves exchanged.
INLINE_KERNEL void turn_eight(const uint64_t* from, uint64_t* to) {
  const Words exchange = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  Words rows[8], pairs[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) rows[i] = _mm512_shuffle_epi8(load_words(from + i * 16), exchange);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm512_unpacklo_epi64(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi64(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    const Words a = _mm512_shuffle_i64x2(pairs[odd], pairs[2 + odd], 0x88);
    const Words b = _mm512_shuffle_i64x2(pairs[4 + odd], pairs[6 + odd], 0x88);
    const Words c = _mm512_shuffle_i64x2(pairs[odd], pairs[2 + odd], 0xdd);
    const Words d = _mm512_shuffle_i64x2(pairs[4 + odd], pairs[6 + odd], 0xdd);
    store_words(to + odd * 16, _mm512_shuffle_i64x2(a, b, 0x88));
    store_words(to + (2 + odd) * 16, _mm512_shuffle_i64x2(c, d, 0x88));
    store_words(to + (4 + odd) * 16, _mm512_shuffle_i64x2(a, b, 0xdd));
    store_words(to + (6 + odd) * 16, _mm512_shuffle_i64x2(c, d, 0xdd));
  }
}

// Packed weights of 32 inputs [16 pairs, 32 outputs] become pairs of outputs [16, 32 inputs].
KERNEL static inline void turn(const void* from, uint32_t* to) {
  const auto* pairs = (const uint64_t*)from;
  auto* turned = (uint64_t*)to;
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 16; j += 8) turn_eight(pairs + i * 16 + j, turned + j * 16 + i);
}

// sum + the products of each lane's two pairs of bfloat16.
INLINE_KERNEL Floats dot2(Floats sum, Words a, Words b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// sum + the products of each lane's four bytes, those of a unsigned, those of b signed.
INLINE_KERNEL Words dot4(Words sum, Words a, Words b) { return _mm512_dpbusd_epi32(sum, a, b); }

// Lanes from `first` to before `last`; both may lie outside.
INLINE_KERNEL Mask lanes(int64_t first, int64_t last) {
  const uint32_t from = first <= 0 ? 0xffff : first >= 16 ? 0 : 0xffffu << first;
  const uint32_t upto = last >= 16 ? 0xffff : last <= 0 ? 0 : (1u << last) - 1;
  return (Mask)(from & upto);
}

// Lanes in which a is larger; none with NaN.
INLINE_KERNEL Mask above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

// x in some lanes, `other` in the rest.
INLINE_KERNEL Floats choose(Mask some, Floats x, Floats other) {
  return _mm512_mask_blend_ps(some, other, x);
}

// Touches no memory but that of the lanes; the others are zero.
INLINE_KERNEL Floats load_some(Mask some, const float* address) {
  return _mm512_maskz_loadu_ps(some, address);
}

INLINE_KERNEL void store_some(Mask some, float* address, Floats x) {
  _mm512_mask_storeu_ps(address, some, x);
}
