// Vectors of 16 lanes for CPUs with AVX2 and FMA: two registers for each of avx512.h's, whose comments
// say what the functions do. Weights stay bfloat16, products are taken in float32.

#pragma once

#include <immintrin.h>

#include <cstdint>

#define EXPORT(name) collm_avx2_##name
#define KERNEL __attribute__((target("avx2,fma")))
#define INLINE_KERNEL KERNEL __attribute__((always_inline)) static inline

using bf16 = uint16_t;

struct Floats {
  __m256 a, b;
};

struct Words {
  __m256i a, b;
};

using Mask = Words;  // All bits of some lanes.

// More than the sixteen registers hold: what spills is read back from the nearest cache, and unpacking
// weights for eight rows at once is worth more. Half as fast with two rows, a tenth slower with four.
constexpr int kMaxRows = 8;
constexpr int kSums = 4;

INLINE_KERNEL Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE_KERNEL Floats all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
INLINE_KERNEL Floats load(const float* address) {
  return {_mm256_loadu_ps(address), _mm256_loadu_ps(address + 8)};
}
INLINE_KERNEL void store(float* address, Floats x) {
  _mm256_storeu_ps(address, x.a);
  _mm256_storeu_ps(address + 8, x.b);
}
INLINE_KERNEL Floats add(Floats x, Floats y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
INLINE_KERNEL Floats sub(Floats x, Floats y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
INLINE_KERNEL Floats mul(Floats x, Floats y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
INLINE_KERNEL Floats div(Floats x, Floats y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
INLINE_KERNEL Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE_KERNEL Floats fnma(Floats x, Floats y, Floats z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
INLINE_KERNEL Floats max(Floats x, Floats y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
INLINE_KERNEL Floats min(Floats x, Floats y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
INLINE_KERNEL Floats nearest(Floats x) {
  return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)};
}

INLINE_KERNEL float total(Floats x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

INLINE_KERNEL float highest(Floats x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// n is clamped to the exponents of normal numbers: what is smaller becomes nearly zero.
INLINE_KERNEL __m256 shift_exponent(__m256 x, __m256 n) {
  const __m256i whole = _mm256_max_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(-126));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(power));
}
INLINE_KERNEL Floats shift_exponent(Floats x, Floats n) {
  return {shift_exponent(x.a, n.a), shift_exponent(x.b, n.b)};
}

INLINE_KERNEL Words load_words(const void* address) {
  const auto* from = (const __m256i*)address;
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
INLINE_KERNEL void store_words(void* address, Words x) {
  auto* to = (__m256i*)address;
  _mm256_storeu_si256(to, x.a);
  _mm256_storeu_si256(to + 1, x.b);
}
INLINE_KERNEL Words all_words(int32_t value) {
  return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
}
INLINE_KERNEL Words both(Words x, Words y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
template <int BITS>
INLINE_KERNEL Words right(Words x) {
  return {_mm256_srli_epi32(x.a, BITS), _mm256_srli_epi32(x.b, BITS)};
}
INLINE_KERNEL Words plus(Words x, Words y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
INLINE_KERNEL Words minus(Words x, Words y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
INLINE_KERNEL Words larger(Words x, Words y) {
  return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
INLINE_KERNEL int32_t largest(Words x) {
  const __m256i eight = _mm256_max_epi32(x.a, x.b);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
INLINE_KERNEL int32_t total(Words x) {
  const __m256i eight = _mm256_add_epi32(x.a, x.b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
INLINE_KERNEL Floats to_floats(Words x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
INLINE_KERNEL Words to_words(Floats x) {
  return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
INLINE_KERNEL Words bits(Floats x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }

INLINE_KERNEL void store_bytes(int8_t* address, Words x) {
  // Packing works within halves of a register; the permutation brings the lanes into order.
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(pairs, pairs), 0xd8);
  _mm_storeu_si128((__m128i*)address, _mm256_castsi256_si128(bytes));
}

INLINE_KERNEL Floats widen(const bf16* address) {
  const Words x{_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)address)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(address + 8)))};
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
INLINE_KERNEL __m256i rounded(__m256 x) {
  const __m256i word = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan), 16);
}
INLINE_KERNEL void narrow(bf16* address, Floats x) {
  const __m256i pairs = _mm256_packus_epi32(rounded(x.a), rounded(x.b));
  _mm256_storeu_si256((__m256i*)address, _mm256_permute4x64_epi64(pairs, 0xd8));
}

INLINE_KERNEL __m256i finite_or_zero(__m256i x) {
  const __m256i exponent = _mm256_set1_epi16(0x7f80);
  return _mm256_andnot_si256(_mm256_cmpeq_epi16(_mm256_and_si256(x, exponent), exponent), x);
}
INLINE_KERNEL Words finite_or_zero(Words x) { return {finite_or_zero(x.a), finite_or_zero(x.b)}; }

// Of the first 16 places of each, then of the last 16. Unpacking works within halves of a register.
INLINE_KERNEL Words interleave(__m256i x, __m256i y) {
  const __m256i low = _mm256_unpacklo_epi16(x, y), high = _mm256_unpackhi_epi16(x, y);
  return {_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31)};
}
INLINE_KERNEL void interleave(Words x, Words y, Words& low, Words& high) {
  low = interleave(x.a, y.a), high = interleave(x.b, y.b);
}

INLINE_KERNEL __m256 first_of_pair(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
INLINE_KERNEL __m256 second_of_pair(__m256i x) {
  return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}
INLINE_KERNEL __m256 dot2(__m256 sum, __m256i x, __m256i y) {
  sum = _mm256_fmadd_ps(first_of_pair(x), first_of_pair(y), sum);
  return _mm256_fmadd_ps(second_of_pair(x), second_of_pair(y), sum);
}
static inline void turn(const void* from, uint32_t* to) {
  const auto* pairs = (const uint64_t*)from;
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      const uint64_t x = pairs[i * 16 + j];
      ((uint64_t*)to)[j * 16 + i] =
          (x & 0xffff00000000ffff) | (x >> 16 & 0xffff0000) | (x & 0xffff0000) << 16;
    }
}

INLINE_KERNEL Floats dot2(Floats sum, Words x, Words y) {
  return {dot2(sum.a, x.a, y.a), dot2(sum.b, x.b, y.b)};
}

// In 16 bits, where no product overflows: bytes 0 and 2 of each lane, then 1 and 3.
INLINE_KERNEL __m256i dot4(__m256i sum, __m256i x, __m256i y) {
  const __m256i even = _mm256_and_si256(x, _mm256_set1_epi16(0xff));
  const __m256i y_even = _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, y_even));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(y, 8));
  return _mm256_add_epi32(sum, odd);
}
INLINE_KERNEL Words dot4(Words sum, Words x, Words y) {
  return {dot4(sum.a, x.a, y.a), dot4(sum.b, x.b, y.b)};
}

INLINE_KERNEL __m256i lanes(__m256i lane, int64_t first, int64_t last) {
  const int from = first < 0 ? 0 : first > 16 ? 16 : (int)first;
  const int upto = last < 0 ? 0 : last > 16 ? 16 : (int)last;
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(from), lane),
                             _mm256_cmpgt_epi32(_mm256_set1_epi32(upto), lane));
}
INLINE_KERNEL Mask lanes(int64_t first, int64_t last) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {lanes(lane, first, last), lanes(lane, first - 8, last - 8)};
}

INLINE_KERNEL Mask above(Floats x, Floats y) {
  return {_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}

INLINE_KERNEL Floats choose(Mask some, Floats x, Floats other) {
  return {_mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(some.a)),
          _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(some.b))};
}
INLINE_KERNEL Floats load_some(Mask some, const float* address) {
  return {_mm256_maskload_ps(address, some.a), _mm256_maskload_ps(address + 8, some.b)};
}
INLINE_KERNEL void store_some(Mask some, float* address, Floats x) {
  _mm256_maskstore_ps(address, some.a, x.a);
  _mm256_maskstore_ps(address + 8, some.b, x.b);
}
