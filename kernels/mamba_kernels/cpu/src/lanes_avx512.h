// Sixteen float32 lanes as one register of AVX-512; the same operations in the same order as lanes_avx2.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

struct Lanes {
  __m512 x;

  static Lanes zero() { return {_mm512_setzero_ps()}; }
  static Lanes all(float value) { return {_mm512_set1_ps(value)}; }
  static Lanes load(const float* at) { return {_mm512_loadu_ps(at)}; }
  static Lanes load_bfloat16(const uint16_t* at) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  static Lanes load_float16(const uint16_t* at) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)))};
  }
  static Lanes load_int8(const int8_t* at) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))))};
  }
  void store(float* at) const { _mm512_storeu_ps(at, x); }
  void store_bfloat16(uint16_t* at) const {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    near = _mm512_mask_mov_epi32(near, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(_mm512_srli_epi32(near, 16)));
  }
  void store_float16(uint16_t* at) const {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtps_ph(x, nearest));
  }

  friend Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.x, b.x)}; }
  friend Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.x, b.x)}; }
  friend Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.x, b.x)}; }
  friend Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.x, b.x)}; }
  static Lanes fused(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
  static Lanes larger(Lanes a, Lanes b) { return {_mm512_max_ps(a.x, b.x)}; }
  static Lanes clamp(Lanes value, float low, float high) {
    return {_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), value.x))};
  }
  static Lanes rounded(Lanes value) {
    return {_mm512_roundscale_ps(value.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static Lanes power_of_two(Lanes value) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(value.x), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
  }

  float sum() const {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

#ifdef __AVX512BF16__
  // A pair of bfloat16 activations, as they lie in memory.
  using Activation = uint32_t;
  static constexpr int kActivationsPerPair = 1;
  static void keep_pair(Activation* at, int, float even, float odd) {
    at[0] = _mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(even))) >> 16 & 0xffffu;
    at[0] |= static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(odd)))) & 0xffff0000u;
  }
  template <int kRows, int kPanels>
  static void add_pairs(Lanes (&sums)[kPanels][kRows], const uint32_t* const (&weights)[kPanels],
                        const Activation* pair) {
    for (int p = 0; p < kPanels; ++p) {
      const __m512bh both = reinterpret_cast<__m512bh>(_mm512_load_si512(weights[p]));
      for (int row = 0; row < kRows; ++row) {
        const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair[row])));
        sums[p][row].x = _mm512_dpbf16_ps(sums[p][row].x, both, x);
      }
    }
  }
#else
  using Activation = float;
  static constexpr int kActivationsPerPair = 2;
  static void keep_pair(Activation* at, int rows, float even, float odd) {
    at[0] = odd;
    at[rows] = even;
  }
  template <int kRows, int kPanels>
  static void add_pairs(Lanes (&sums)[kPanels][kRows], const uint32_t* const (&weights)[kPanels],
                        const Activation* pair) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    for (int p = 0; p < kPanels; ++p) {
      const __m512i both = _mm512_load_si512(weights[p]);
      const Lanes odd = {_mm512_castsi512_ps(_mm512_and_si512(both, high))};
      for (int row = 0; row < kRows; ++row) sums[p][row] = fused(odd, all(pair[row]), sums[p][row]);
      const Lanes even = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
      for (int row = 0; row < kRows; ++row) sums[p][row] = fused(even, all(pair[kRows + row]), sums[p][row]);
    }
  }
#endif
  static constexpr int kPanelsPerTile = 4;
  static constexpr int kVectorsPerTile = 2;
#ifdef __AVX512BF16__
  static constexpr int kReadAhead = 0;
#else
  static constexpr int kReadAhead = 2048;
#endif
};

}  // namespace
