// The decode kernels with vectors that count what they read and write of one piece of memory.
#include "lanes_avx2.h"

namespace {

struct Counts {
  uintptr_t begin, end;
  int64_t read, written;
};
Counts counts;

void count(const void* at, int64_t bytes, int64_t& total) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(at);
  if (counts.begin <= first && first < counts.end) total += bytes;
}

using PlainLanes = Lanes;
struct CountedLanes : PlainLanes {
  CountedLanes() = default;
  CountedLanes(PlainLanes lanes) : PlainLanes(lanes) {}

  static CountedLanes zero() { return PlainLanes::zero(); }
  static CountedLanes all(float value) { return PlainLanes::all(value); }
  static CountedLanes power_of_two(CountedLanes whole) { return PlainLanes::power_of_two(whole); }
  static CountedLanes fused(CountedLanes a, CountedLanes b, CountedLanes c) { return PlainLanes::fused(a, b, c); }
  friend CountedLanes operator+(CountedLanes a, CountedLanes b) { return plain(a) + plain(b); }
  friend CountedLanes operator-(CountedLanes a, CountedLanes b) { return plain(a) - plain(b); }
  friend CountedLanes operator*(CountedLanes a, CountedLanes b) { return plain(a) * plain(b); }
  friend CountedLanes operator/(CountedLanes a, CountedLanes b) { return plain(a) / plain(b); }
  static const PlainLanes& plain(const CountedLanes& lanes) { return lanes; }

  static CountedLanes load(const float* at) {
    count(at, 64, counts.read);
    return PlainLanes::load(at);
  }
  void store(float* at) const {
    count(at, 64, counts.written);
    PlainLanes::store(at);
  }
};

}  // namespace

#define Lanes CountedLanes
#include "delta_mixer.h"
#include "mamba_decode.h"

extern "C" {
#pragma GCC visibility push(default)

void count_in(const void* begin, int64_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
  counts = {first, first + static_cast<uintptr_t>(bytes), 0, 0};
}
int64_t bytes_read() { return counts.read; }
int64_t bytes_written() { return counts.written; }
void counted_mamba_decode(const MambaDecode* call) { mamba_decode(call); }
void counted_delta_decode(const DeltaDecode* call) { delta_decode(call); }

#pragma GCC visibility pop
}
