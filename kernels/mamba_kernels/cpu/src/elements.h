// Elements of memory as float32 lanes: whole vectors, and the last elements of a row. Included after Lanes.
#pragma once
#include <cstring>
#include <type_traits>

#include "bfloat16.h"
#include "interface.h"

namespace {

constexpr int kLanes = 16;

// Rounds a number of elements up to whole vectors.
inline int64_t whole_lanes(int64_t elements) { return (elements + kLanes - 1) / kLanes * kLanes; }

struct Half {
  uint16_t bits;
};

// A number of e4m3. Lanes hold it divided by 2^8, without its row's scale; to store it, they hold it whole.
struct Fp8 {
  uint8_t bits;
};

// Prefetches `bytes` bytes that lie kReadAhead bytes after `at`. Nothing is read, so an address outside the array is
// no error; it is computed as a number, since a pointer must not leave its array.
inline void ask_ahead(const void* at, size_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(at) + Lanes::kReadAhead;
  for (uintptr_t line = first; line < first + bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
  }
}

inline Lanes load(const float* at) { return Lanes::load(at); }
inline Lanes load(const uint16_t* at) { return Lanes::load_bfloat16(at); }
inline Lanes load(const Half* at) { return Lanes::load_float16(&at->bits); }
inline Lanes load(const Fp8* at) { return Lanes::load_e4m3(&at->bits); }
inline void store(float* at, Lanes x) { x.store(at); }
inline void store(uint16_t* at, Lanes x) { x.store_bfloat16(at); }
inline void store(Half* at, Lanes x) { x.store_float16(&at->bits); }
inline void store(Fp8* at, Lanes x) { x.store_e4m3(&at->bits); }

// Reads the first `count` lanes; the others are zero.
template <typename T>
inline Lanes load_some(const T* at, int count) {
  if (count >= kLanes) return load(at);
  T some[kLanes] = {};
  std::memcpy(some, at, static_cast<size_t>(count) * sizeof(T));
  return load(some);
}

template <typename T>
inline void store_some(T* at, int count, Lanes x) {
  if (count >= kLanes) return store(at, x);
  T some[kLanes];
  store(some, x);
  std::memcpy(at, some, static_cast<size_t>(count) * sizeof(T));
}

// Reads like load_some. If the compiler knows that the vector is whole (kWhole), there is no call between the
// vectors of a row, so sums stay in registers.
template <bool kWhole, typename T>
inline Lanes load_part(const T* at, int count) {
  return kWhole ? load(at) : load_some(at, count);
}

template <bool kWhole, typename T>
inline void store_part(T* at, int count, Lanes x) {
  kWhole ? store(at, x) : store_some(at, count, x);
}

// Calls body(whole, first element, elements left) for the vectors of [from, to), of which the last may be partial.
template <typename Body>
inline void for_each_vector(int64_t from, int64_t to, const Body& body) {
  const int64_t whole = from + (to - from) / kLanes * kLanes;
  for (int64_t i = from; i < whole; i += kLanes) body(std::true_type{}, i, kLanes);
  if (whole < to) body(std::false_type{}, whole, static_cast<int>(to - whole));
}

// Rounds lanes of a state, the first of which is its element `element`, to the stored type: float16 stochastically,
// as in stochastic_rounding.py. Compiles to nothing if states have another type.
template <typename State>
inline Lanes as_stored(Lanes x, uint32_t element, uint32_t noise) {
  if constexpr (std::is_same_v<State, Half>) return Lanes::rounded_stochastically(x, element, noise);
  return x;
}

}  // namespace
