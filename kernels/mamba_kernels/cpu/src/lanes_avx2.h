// Sixteen float32 lanes as two registers of AVX2. Every instruction set has sixteen lanes and reduces them in the
// same order, so that results do not depend on the width of its registers.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

struct Lanes {
  __m256 lo, hi;

  static Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Lanes all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Lanes load(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
  static Lanes load_bfloat16(const uint16_t* at) {
    return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
            widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 8)))};
  }
  static Lanes load_float16(const uint16_t* at) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 8)))};
  }
  // Reads e4m3 divided by 2^8: shifted, its bits are those of a float16, whose exponents have a larger bias.
  static Lanes load_e4m3(const uint8_t* at) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  }
  void store(float* at) const {
    _mm256_storeu_ps(at, lo);
    _mm256_storeu_ps(at + 8, hi);
  }
  void store_bfloat16(uint16_t* at) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), narrow(lo));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 8), narrow(hi));
  }
  // Rounds numbers of at most 448 to e4m3.
  void store_e4m3(uint8_t* at) const {
    const __m256i words = _mm256_packus_epi32(e4m3(lo), e4m3(hi));
    const __m256i bytes = _mm256_packus_epi16(words, words);
    // Each half of `words` holds four lanes of `lo`, then four of `hi`.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at),
                     _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order)));
  }
  void store_float16(uint16_t* at) const {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_cvtps_ph(lo, nearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 8), _mm256_cvtps_ph(hi, nearest));
  }

  friend Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  friend Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  friend Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  friend Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  // a * b + c, rounded once
  static Lanes fused(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static Lanes larger(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  // Keeps NaN in `x`: the second operand is returned if the two cannot be compared.
  static Lanes clamp(Lanes x, float low, float high) {
    const __m256 l = _mm256_set1_ps(low), h = _mm256_set1_ps(high);
    return {_mm256_min_ps(h, _mm256_max_ps(l, x.lo)), _mm256_min_ps(h, _mm256_max_ps(l, x.hi))};
  }
  static Lanes rounded(Lanes x) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.lo, nearest), _mm256_round_ps(x.hi, nearest)};
  }
  // Rounds to numbers that float16 has, as stochastic_rounding.py does, operation by operation.
  static Lanes rounded_stochastically(Lanes x, uint32_t element, uint32_t noise) {
    return {rounded_stochastically(x.lo, element, noise), rounded_stochastically(x.hi, element + 8, noise)};
  }
  // Computes 2^x for integers x within the exponents of float32.
  static Lanes power_of_two(Lanes x) { return {power_of_two(x.lo), power_of_two(x.hi)}; }

  float sum() const {
    const __m256 eight = _mm256_add_ps(lo, hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  // Adds products of pairs of bfloat16: lane i of `weights` holds inputs 2k (low half) and 2k+1 of output i. The
  // odd input is added first, as the instruction for pairs does.
  using Activation = float;
  static constexpr int kActivationsPerPair = 2;
  static void keep_pair(Activation* at, int rows, float even, float odd) {
    at[0] = odd;
    at[rows] = even;
  }
  template <int kRows, int kPanels>
  static void add_pairs(Lanes (&sums)[kPanels][kRows], const uint32_t* const (&weights)[kPanels],
                        const Activation* pair) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    for (int p = 0; p < kPanels; ++p) {
      const __m256i* at = reinterpret_cast<const __m256i*>(weights[p]);
      const Lanes odd = {_mm256_castsi256_ps(_mm256_and_si256(_mm256_load_si256(at), high)),
                         _mm256_castsi256_ps(_mm256_and_si256(_mm256_load_si256(at + 1), high))};
      for (int row = 0; row < kRows; ++row) sums[p][row] = fused(odd, all(pair[row]), sums[p][row]);
      const Lanes even = {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256(at), 16)),
                          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256(at + 1), 16))};
      for (int row = 0; row < kRows; ++row) sums[p][row] = fused(even, all(pair[kRows + row]), sums[p][row]);
    }
  }
  // Panels of a tile with many rows: as many accumulators as fit the registers.
  static constexpr int kPanelsPerTile = 1;
  // Vectors of a tile of cached matrices, which has four rows: eight accumulators hide the latency.
  static constexpr int kVectorsPerTile = 1;
  // Distance in bytes at which weights and states are prefetched. Intel cores, which use AVX-512 without bfloat16, read
  // faster with it; on AMD cores it is slower.
  static constexpr int kReadAhead = 0;

  // Returns the largest absolute value; NaN counts as larger than all numbers.
  static float largest_size(Lanes a, Lanes b) {
    const auto size = [](__m256 each) {
      return _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), each));
    };
    const __m256i eight =
        _mm256_max_epi32(_mm256_max_epi32(size(a.lo), size(a.hi)), _mm256_max_epi32(size(b.lo), size(b.hi)));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(four));
  }

 private:
  static __m256i e4m3(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(size, 20), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(size, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
    const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(near, 20), _mm256_set1_epi32(120 << 3));
    // Below the smallest normal number, 2^-6, numbers are multiples of 2^-9: a sum with 2^14 rounds to them.
    const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(size), _mm256_set1_ps(16384.0f));
    const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(sum), _mm256_set1_epi32(0x46800000));
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), size);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    return _mm256_or_si256(_mm256_blendv_epi8(normal, small, below), sign);
  }
  static __m256 rounded_stochastically(__m256 x, uint32_t element, uint32_t noise) {
    const auto all32 = [](uint32_t each) { return _mm256_set1_epi32(static_cast<int>(each)); };
    constexpr uint32_t golden = 0x9e3779b9u;
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i places = _mm256_add_epi32(all32(element * golden), _mm256_mullo_epi32(lanes, all32(golden)));
    __m256i random = _mm256_xor_si256(places, all32(noise));
    random = _mm256_xor_si256(random, _mm256_srli_epi32(random, 16));
    random = _mm256_mullo_epi32(random, all32(0x85ebca6bu));
    random = _mm256_xor_si256(random, _mm256_srli_epi32(random, 13));
    random = _mm256_mullo_epi32(random, all32(0xc2b2ae35u));
    random = _mm256_xor_si256(random, _mm256_srli_epi32(random, 16));
    const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f)), size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    const __m256i bits = _mm256_castps_si256(size);
    __m256i carried = _mm256_add_epi32(bits, _mm256_srli_epi32(random, 19));
    carried = _mm256_min_epi32(_mm256_and_si256(carried, all32(~0x1fffu)), all32(0x477fe000u));
    __m256 out = _mm256_castsi256_ps(carried);
    const __m256 below = _mm256_castsi256_ps(_mm256_cmpgt_epi32(all32(0x38800000u), bits));
    if (_mm256_movemask_ps(below) != 0) {
      const __m256 steps = _mm256_mul_ps(size, _mm256_set1_ps(0x1p24f)), whole = _mm256_floor_ps(steps);
      const __m256 drawn = _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(random, 9)), _mm256_set1_ps(0.5f));
      const __m256 threshold = _mm256_mul_ps(drawn, _mm256_set1_ps(0x1p-23f));
      const __m256 up = _mm256_cmp_ps(_mm256_sub_ps(steps, whole), threshold, _CMP_GT_OQ);
      const __m256 taken = _mm256_add_ps(whole, _mm256_and_ps(up, _mm256_set1_ps(1.0f)));
      out = _mm256_blendv_ps(out, _mm256_mul_ps(taken, _mm256_set1_ps(0x1p-24f)), below);
    }
    const __m256 infinite = _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, all32(0x477fefffu)));
    return _mm256_or_ps(_mm256_blendv_ps(out, size, infinite), sign);
  }
  static __m256 widen(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static __m128i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    near = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(near), _mm256_castsi256_ps(nan),
                                                _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    near = _mm256_srli_epi32(near, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(near), _mm256_extracti128_si256(near, 1));
  }
  static __m256 power_of_two(__m256 x) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
};

// Sixteen int32 lanes for sums of products of int8, which are exact in any order.
struct WholeLanes {
  __m256i lo, hi;

  Lanes as_floats() const { return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)}; }
  // Rounds both to nearest and stores 32 numbers; returns their sum.
  static int32_t store_int8(int8_t* at, Lanes low, Lanes high) {
    const __m256i whole[4] = {_mm256_cvtps_epi32(low.lo), _mm256_cvtps_epi32(low.hi), _mm256_cvtps_epi32(high.lo),
                              _mm256_cvtps_epi32(high.hi)};
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_permutevar8x32_epi32(bytes, order));
    const __m256i eight =
        _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3]));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  }
  // Initial sums of a block: `start`, -128 times the sum of its inputs, if the instruction takes weights plus 128;
  // otherwise zero.
  static WholeLanes start(uint32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  // Adds products of four inputs: a lane of `weights` holds those of an output. Sums of two products fit 16
  // bits, since weights are at most 128 in size and inputs at most 127.
  template <int kRows, int kPanels>
  static void add_quads(WholeLanes (&sums)[kPanels][kRows], const int8_t* const (&weights)[kPanels],
                        const uint32_t* quad) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int p = 0; p < kPanels; ++p) {
      const __m256i* at = reinterpret_cast<const __m256i*>(weights[p]);
      const __m256i low = _mm256_loadu_si256(at);
      const __m256i high = _mm256_loadu_si256(at + 1);
      const __m256i low_size = _mm256_abs_epi8(low), high_size = _mm256_abs_epi8(high);
      for (int row = 0; row < kRows; ++row) {
        const __m256i x = _mm256_set1_epi32(static_cast<int>(quad[row]));
        const __m256i low_pairs = _mm256_maddubs_epi16(low_size, _mm256_sign_epi8(x, low));
        const __m256i high_pairs = _mm256_maddubs_epi16(high_size, _mm256_sign_epi8(x, high));
        sums[p][row].lo = _mm256_add_epi32(sums[p][row].lo, _mm256_madd_epi16(low_pairs, ones));
        sums[p][row].hi = _mm256_add_epi32(sums[p][row].hi, _mm256_madd_epi16(high_pairs, ones));
      }
    }
  }
  // Adds products of a block by numbers of four bits, which are not negative: quads 2k are in the low halves
  // of bytes, quads 2k + 1 in the high halves. Sums of sixteen products of at most 15 * 127 fit 16 bits.
  template <int kRows, int kPanels>
  static void add_nibbles(WholeLanes (&sums)[kPanels][kRows], const uint8_t* const (&weights)[kPanels],
                          const uint32_t* quads) {
    const __m256i four_bits = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    for (int p = 0; p < kPanels; ++p) {
      const __m256i* at = reinterpret_cast<const __m256i*>(weights[p]);
      WholeLanes pairs[kRows];
      for (WholeLanes& each : pairs) each = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int quad = 0; quad < 8; quad += 2) {
        const __m256i low = _mm256_loadu_si256(at + quad), high = _mm256_loadu_si256(at + quad + 1);
        add_nibbles(pairs, _mm256_and_si256(low, four_bits), _mm256_and_si256(high, four_bits), quads + quad * kRows);
        add_nibbles(pairs, _mm256_and_si256(_mm256_srli_epi16(low, 4), four_bits),
                    _mm256_and_si256(_mm256_srli_epi16(high, 4), four_bits), quads + (quad + 1) * kRows);
      }
      for (int row = 0; row < kRows; ++row) {
        sums[p][row].lo = _mm256_add_epi32(sums[p][row].lo, _mm256_madd_epi16(pairs[row].lo, ones));
        sums[p][row].hi = _mm256_add_epi32(sums[p][row].hi, _mm256_madd_epi16(pairs[row].hi, ones));
      }
    }
  }
  static WholeLanes all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  // Returns the products of sixteen numbers and `x`.
  static WholeLanes products(const uint8_t* at, int32_t x) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m256i factor = _mm256_set1_epi32(x);
    return {_mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), factor),
            _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), factor)};
  }
  // Numbers of panels and of rows of a tile.
  static constexpr int kPanelsPerTile = 1;
  static constexpr int kRowsPerTile = 4;
  // Rows of a tile of numbers of four bits.
  static constexpr int kNibbleRowsPerTile = 4;

 private:
  template <int kRows>
  static void add_nibbles(WholeLanes (&pairs)[kRows], __m256i low, __m256i high, const uint32_t* quad) {
    for (int row = 0; row < kRows; ++row) {
      const __m256i x = _mm256_set1_epi32(static_cast<int>(quad[row]));
      pairs[row].lo = _mm256_add_epi16(pairs[row].lo, _mm256_maddubs_epi16(low, x));
      pairs[row].hi = _mm256_add_epi16(pairs[row].hi, _mm256_maddubs_epi16(high, x));
    }
  }
};

}  // namespace
