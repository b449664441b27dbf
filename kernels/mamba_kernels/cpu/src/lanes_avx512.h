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
  static Lanes load_e4m3(const uint8_t* at) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m256i sign_once = _mm256_set1_epi16(static_cast<short>(0xbfff));
    return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), sign_once))};
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
  void store_e4m3(uint8_t* at) const {
    const __m512i bits = _mm512_castps_si512(x), size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(size, 20), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(size, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
    const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(near, 20), _mm512_set1_epi32(120 << 3));
    const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(size), _mm512_set1_ps(16384.0f));
    const __m512i small = _mm512_sub_epi32(_mm512_castps_si512(sum), _mm512_set1_epi32(0x46800000));
    const __mmask16 below = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x3c800000));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const __m512i number = _mm512_or_si512(_mm512_mask_mov_epi32(normal, below, small), sign);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(number));
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
  static Lanes rounded_stochastically(Lanes value, uint32_t element, uint32_t noise) {
    const auto all32 = [](uint32_t each) { return _mm512_set1_epi32(static_cast<int>(each)); };
    constexpr uint32_t golden = 0x9e3779b9u;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_add_epi32(all32(element * golden), _mm512_mullo_epi32(lanes, all32(golden)));
    __m512i random = _mm512_xor_si512(places, all32(noise));
    random = _mm512_xor_si512(random, _mm512_srli_epi32(random, 16));
    random = _mm512_mullo_epi32(random, all32(0x85ebca6bu));
    random = _mm512_xor_si512(random, _mm512_srli_epi32(random, 13));
    random = _mm512_mullo_epi32(random, all32(0xc2b2ae35u));
    random = _mm512_xor_si512(random, _mm512_srli_epi32(random, 16));
    const __m512 size = _mm512_abs_ps(value.x), sign = _mm512_and_ps(value.x, _mm512_set1_ps(-0.0f));
    const __m512i bits = _mm512_castps_si512(size);
    __m512i carried = _mm512_add_epi32(bits, _mm512_srli_epi32(random, 19));
    carried = _mm512_min_epi32(_mm512_and_si512(carried, all32(~0x1fffu)), all32(0x477fe000u));
    __m512 out = _mm512_castsi512_ps(carried);
    const __mmask16 below = _mm512_cmplt_epi32_mask(bits, all32(0x38800000u));
    if (below != 0) {
      const __m512 steps = _mm512_mul_ps(size, _mm512_set1_ps(0x1p24f));
      const __m512 whole = _mm512_roundscale_ps(steps, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      const __m512 drawn = _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(random, 9)), _mm512_set1_ps(0.5f));
      const __m512 threshold = _mm512_mul_ps(drawn, _mm512_set1_ps(0x1p-23f));
      const __mmask16 up = _mm512_cmp_ps_mask(_mm512_sub_ps(steps, whole), threshold, _CMP_GT_OQ);
      const __m512 taken = _mm512_mask_add_ps(whole, up, whole, _mm512_set1_ps(1.0f));
      out = _mm512_mask_mul_ps(out, below, taken, _mm512_set1_ps(0x1p-24f));
    }
    out = _mm512_mask_mov_ps(out, _mm512_cmpge_epi32_mask(bits, all32(0x477ff000u)), size);
    return {_mm512_or_ps(out, sign)};
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
  // A pair of bfloat16 activations in the layout of memory.
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

  static float largest_size(Lanes a, Lanes b) {
    const auto size = [](Lanes each) { return _mm512_castps_si512(_mm512_abs_ps(each.x)); };
    const int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(size(a), size(b)));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
  }
};

struct WholeLanes {
  __m512i x;

  static WholeLanes load(const int32_t* at) { return {_mm512_loadu_si512(at)}; }
  Lanes as_floats() const { return {_mm512_cvtepi32_ps(x)}; }
  static int32_t store_int8(int8_t* at, Lanes low, Lanes high) {
    const __m512i first = _mm512_cvtps_epi32(low.x), second = _mm512_cvtps_epi32(high.x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtsepi32_epi8(first));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 16), _mm512_cvtsepi32_epi8(second));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
  }
#ifdef __AVX512VNNI__
  // The instruction takes unsigned numbers, so 128 is added to the weights by flipping one bit of each.
  static WholeLanes start(uint32_t start) { return {_mm512_set1_epi32(static_cast<int>(start))}; }
  template <int kRows, int kPanels>
  static void add_quads(WholeLanes (&sums)[kPanels][kRows], const int8_t* const (&weights)[kPanels],
                        const uint32_t* quad) {
    for (int p = 0; p < kPanels; ++p) {
      const __m512i numbers = _mm512_xor_si512(_mm512_loadu_si512(weights[p]), _mm512_set1_epi8(-128));
      for (int row = 0; row < kRows; ++row) {
        const __m512i x = _mm512_set1_epi32(static_cast<int>(quad[row]));
        sums[p][row].x = _mm512_dpbusd_epi32(sums[p][row].x, numbers, x);
      }
    }
  }
  // Numbers of four bits are not negative, as the instruction needs them.
  template <int kRows, int kPanels>
  static void add_nibbles(WholeLanes (&sums)[kPanels][kRows], const uint8_t* const (&weights)[kPanels],
                          const uint32_t* quads) {
    const __m512i four_bits = _mm512_set1_epi8(15);
    for (int quad = 0; quad < 8; quad += 2) {
      for (int p = 0; p < kPanels; ++p) {
        const __m512i both = _mm512_loadu_si512(weights[p] + quad * 32);
        const __m512i low = _mm512_and_si512(both, four_bits);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), four_bits);
        for (int row = 0; row < kRows; ++row) {
          const __m512i x = _mm512_set1_epi32(static_cast<int>(quads[quad * kRows + row]));
          sums[p][row].x = _mm512_dpbusd_epi32(sums[p][row].x, low, x);
        }
        for (int row = 0; row < kRows; ++row) {
          const __m512i x = _mm512_set1_epi32(static_cast<int>(quads[(quad + 1) * kRows + row]));
          sums[p][row].x = _mm512_dpbusd_epi32(sums[p][row].x, high, x);
        }
      }
    }
  }
#else
  static WholeLanes start(uint32_t) { return {_mm512_setzero_si512()}; }
  template <int kRows, int kPanels>
  static void add_quads(WholeLanes (&sums)[kPanels][kRows], const int8_t* const (&weights)[kPanels],
                        const uint32_t* quad) {
    const __m512i none = _mm512_setzero_si512(), ones = _mm512_set1_epi16(1);
    for (int p = 0; p < kPanels; ++p) {
      const __m512i numbers = _mm512_loadu_si512(weights[p]);
      const __m512i sizes = _mm512_abs_epi8(numbers);
      const __mmask64 negative = _mm512_movepi8_mask(numbers);
      for (int row = 0; row < kRows; ++row) {
        const __m512i x = _mm512_set1_epi32(static_cast<int>(quad[row]));
        const __m512i pairs = _mm512_maddubs_epi16(sizes, _mm512_mask_sub_epi8(x, negative, none, x));
        sums[p][row].x = _mm512_add_epi32(sums[p][row].x, _mm512_madd_epi16(pairs, ones));
      }
    }
  }
  // Sums of sixteen products of at most 15 * 127 fit 16 bits.
  template <int kRows, int kPanels>
  static void add_nibbles(WholeLanes (&sums)[kPanels][kRows], const uint8_t* const (&weights)[kPanels],
                          const uint32_t* quads) {
    const __m512i four_bits = _mm512_set1_epi8(15), ones = _mm512_set1_epi16(1);
    for (int p = 0; p < kPanels; ++p) {
      __m512i pairs[kRows];
      for (__m512i& each : pairs) each = _mm512_setzero_si512();
      for (int quad = 0; quad < 8; quad += 2) {
        const __m512i both = _mm512_loadu_si512(weights[p] + quad * 32);
        const __m512i low = _mm512_and_si512(both, four_bits);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), four_bits);
        for (int row = 0; row < kRows; ++row) {
          const __m512i even = _mm512_set1_epi32(static_cast<int>(quads[quad * kRows + row]));
          const __m512i odd = _mm512_set1_epi32(static_cast<int>(quads[(quad + 1) * kRows + row]));
          pairs[row] = _mm512_add_epi16(pairs[row], _mm512_maddubs_epi16(low, even));
          pairs[row] = _mm512_add_epi16(pairs[row], _mm512_maddubs_epi16(high, odd));
        }
      }
      for (int row = 0; row < kRows; ++row) {
        sums[p][row].x = _mm512_add_epi32(sums[p][row].x, _mm512_madd_epi16(pairs[row], ones));
      }
    }
  }
#endif
  static WholeLanes all(int32_t x) { return {_mm512_set1_epi32(x)}; }
  // Returns the products of sixteen numbers and `x`.
  static WholeLanes products(const uint8_t* at, int32_t x) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return {_mm512_mullo_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(x))};
  }
  static constexpr int kPanelsPerTile = 2;
  static constexpr int kRowsPerTile = 6;
  // Rows of a tile of one panel of numbers of four bits: one stream of weights is read much faster than two.
  static constexpr int kNibbleRowsPerTile = 8;
};

}  // namespace
