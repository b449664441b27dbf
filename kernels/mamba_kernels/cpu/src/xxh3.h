// XXH3 with 64 bits and no seed, of blocks above 240 bytes whose bytes arrive in pieces. Written from the algorithm's
// specification (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md); the secret is a constant of it.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kStripe = 64;
constexpr int kStripesOfRound = 16;
constexpr int64_t kSmallestBlock = 241;  // shorter ones have another formula

alignas(64) constexpr uint8_t kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr uint64_t kFirst32 = 0x9E3779B1, kSecond32 = 0x85EBCA77, kThird32 = 0xC2B2AE3D;
constexpr uint64_t kFirst64 = 0x9E3779B185EBCA87, kSecond64 = 0xC2B2AE3D27D4EB4F, kThird64 = 0x165667B19E3779F9,
                   kFourth64 = 0x85EBCA77C2B2AE63, kFifth64 = 0x27D4EB2F165667C5;
constexpr int64_t kAhead = 8192;  // bytes that are fetched into the cache before they are needed

inline uint64_t read64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// add_stripes_512 and add_stripes_256 add `count` stripes to the eight sums, and end each round that the
// stripes complete. `stripe` is the number of stripes that the current round already has. The loop over
// rounds is inside the functions, so that the sums stay in registers.
__attribute__((target("avx512f"))) inline void add_stripes_512(uint64_t* sums, const uint8_t* bytes, int64_t count,
                                                                int64_t stripe) {
  const __m512i prime = _mm512_set1_epi64(kFirst32), end_secret = _mm512_loadu_si512(kSecret + 128);
  __m512i total = _mm512_loadu_si512(sums);
  while (count > 0) {
    const int64_t now = std::min<int64_t>(count, kStripesOfRound - stripe);
    const uint8_t* secret = kSecret + 8 * stripe;
    for (int64_t i = 0; i < now; ++i, bytes += kStripe, secret += 8) {
      _mm_prefetch(reinterpret_cast<const char*>(bytes + kAhead), _MM_HINT_T0);
      const __m512i data = _mm512_loadu_si512(bytes);
      const __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
      const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
      total = _mm512_add_epi64(total, _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(0x4E)));
      total = _mm512_add_epi64(total, product);
    }
    count -= now;
    stripe += now;
    if (stripe == kStripesOfRound) {
      stripe = 0;
      total = _mm512_xor_si512(_mm512_xor_si512(total, _mm512_srli_epi64(total, 47)), end_secret);
      const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(total, 32), prime);
      total = _mm512_add_epi64(_mm512_mul_epu32(total, prime), _mm512_slli_epi64(high, 32));
    }
  }
  _mm512_storeu_si512(sums, total);
}

__attribute__((target("avx2"))) inline __m256i with_stripe_half(__m256i total, const uint8_t* bytes,
                                                                const uint8_t* secret) {
  const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  const __m256i keyed = _mm256_xor_si256(data, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret)));
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  return _mm256_add_epi64(_mm256_add_epi64(total, _mm256_shuffle_epi32(data, 0x4E)), product);
}

__attribute__((target("avx2"))) inline __m256i with_round_ended(__m256i total, const uint8_t* secret) {
  const __m256i prime = _mm256_set1_epi64x(kFirst32);
  const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret));
  total = _mm256_xor_si256(_mm256_xor_si256(total, _mm256_srli_epi64(total, 47)), key);
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(total, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(total, prime), _mm256_slli_epi64(high, 32));
}

__attribute__((target("avx2"))) inline void add_stripes_256(uint64_t* sums, const uint8_t* bytes, int64_t count,
                                                            int64_t stripe) {
  __m256i* const halves = reinterpret_cast<__m256i*>(sums);
  __m256i low = _mm256_loadu_si256(halves), high = _mm256_loadu_si256(halves + 1);
  while (count > 0) {
    const int64_t now = std::min<int64_t>(count, kStripesOfRound - stripe);
    const uint8_t* secret = kSecret + 8 * stripe;
    for (int64_t i = 0; i < now; ++i, bytes += kStripe, secret += 8) {
      _mm_prefetch(reinterpret_cast<const char*>(bytes + kAhead), _MM_HINT_T0);
      low = with_stripe_half(low, bytes, secret);
      high = with_stripe_half(high, bytes + 32, secret + 32);
    }
    count -= now;
    stripe += now;
    if (stripe == kStripesOfRound) {
      stripe = 0;
      low = with_round_ended(low, kSecret + 128);
      high = with_round_ended(high, kSecret + 160);
    }
  }
  _mm256_storeu_si256(halves, low);
  _mm256_storeu_si256(halves + 1, high);
}

// The checksum of one block of `size` bytes.
class Checksum {
 public:
  void begin(int64_t size) {
    const uint64_t initial[8] = {kThird32,  kFirst64,  kSecond64, kThird64,
                                 kFourth64, kSecond32, kFifth64,  kFirst32};
    std::memcpy(sums_, initial, sizeof(sums_));
    size_ = size;
    done_ = waiting_ = stripe_ = 0;
  }
  int64_t left() const { return size_ - done_; }

  // Adds the next `count` bytes, at most those that are left.
  void add(const uint8_t* bytes, int64_t count, bool wide) {
    while (count > 0) {
      // The last 1 to 64 bytes of the block belong to a stripe of their own, which overlaps the one before.
      const int64_t whole = waiting_ ? 0 : (count == left() ? count - 1 : count) / kStripe;
      int64_t taken = whole * kStripe;
      if (whole > 0) {
        add_stripes(bytes, whole, wide);
        done_ += taken;
      } else {
        taken = std::min(kStripe - waiting_, count);
        std::memcpy(rest_ + waiting_, bytes, taken);
        waiting_ += taken;
        done_ += taken;
        if (waiting_ == kStripe && left() > 0) {
          add_stripes(rest_, 1, wide);
          waiting_ = 0;
        }
      }
      bytes += taken;
      count -= taken;
    }
  }

  // Returns the checksum of the whole block.
  uint64_t result() {
    uint8_t last[kStripe];
    std::memcpy(last, before_ + waiting_, kStripe - waiting_);
    std::memcpy(last + kStripe - waiting_, rest_, waiting_);
    // The secret of the last stripe begins at byte 121, which is no multiple of eight.
    for (int lane = 0; lane < 8; ++lane) {
      const uint64_t data = read64(last + 8 * lane), keyed = data ^ read64(kSecret + 121 + 8 * lane);
      sums_[lane ^ 1] += data;
      sums_[lane] += (keyed & 0xffffffff) * (keyed >> 32);
    }
    uint64_t total = static_cast<uint64_t>(size_) * kFirst64;
    for (int pair = 0; pair < 4; ++pair) {
      const unsigned __int128 product =
          static_cast<unsigned __int128>(sums_[2 * pair] ^ read64(kSecret + 11 + 16 * pair)) *
          (sums_[2 * pair + 1] ^ read64(kSecret + 19 + 16 * pair));
      total += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    total = (total ^ (total >> 37)) * 0x165667919E3779F9;
    return total ^ (total >> 32);
  }

 private:
  void add_stripes(const uint8_t* bytes, int64_t count, bool wide) {
    std::memcpy(before_, bytes + (count - 1) * kStripe, kStripe);
    (wide ? add_stripes_512 : add_stripes_256)(sums_, bytes, count, stripe_);
    stripe_ = (stripe_ + count) % kStripesOfRound;
  }

  uint64_t sums_[8];
  uint8_t rest_[kStripe];    // bytes that wait for the rest of their stripe
  uint8_t before_[kStripe];  // the last whole stripe
  int64_t size_, done_, waiting_, stripe_;
};

}  // namespace
