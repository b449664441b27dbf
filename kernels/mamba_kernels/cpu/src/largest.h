// The first place of the largest number of each row: a greedy token.
#pragma once
#include <cmath>
#include <limits>

#include "elements.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kSearchedPerChunk = 16384;
constexpr int64_t kSegment = 512;  // numbers of a segment; the one with the largest number is searched once more

inline float element(const float* at) { return *at; }
inline float element(const uint16_t* at) { return widened(*at); }

struct Found {
  float largest = -std::numeric_limits<float>::infinity();
  int64_t segment = 0;  // start of the first segment that contains it
  float spoilt = 0.0f;  // NaN if the row contains NaN or infinity
};

template <typename T>
Found search(const T* x, int64_t begin, int64_t end) {
  Found found;
  found.segment = begin;
  Lanes spoilt = Lanes::zero();
  for (int64_t first = begin; first < end; first += kSegment) {
    const int64_t last = first + kSegment < end ? first + kSegment : end, whole = first + (last - first) / kLanes * kLanes;
    Lanes lanes = Lanes::all(-std::numeric_limits<float>::infinity());
    for (int64_t i = first; i < whole; i += kLanes) {
      const Lanes part = load(x + i);
      // `larger` returns the second operand if the two cannot be compared, so NaN is skipped here ...
      lanes = Lanes::larger(part, lanes);
      // ... and kept here, where zero times infinity becomes NaN as well.
      spoilt = Lanes::fused(Lanes::larger(Lanes::zero(), part), Lanes::zero(), spoilt);
    }
    float each[kLanes], largest = -std::numeric_limits<float>::infinity();
    lanes.store(each);
    for (const float one : each) largest = one > largest ? one : largest;
    for (int64_t i = whole; i < last; ++i) {
      const float one = element(x + i);
      largest = one > largest ? one : largest;
      found.spoilt += (one > 0.0f || one != one ? one : 0.0f) * 0.0f;
    }
    if (largest > found.largest) {
      found.largest = largest;
      found.segment = first;
    }
  }
  found.spoilt += spoilt.sum();
  return found;
}

template <typename T>
void largest_of_rows(const T* x, int64_t rows, int64_t columns, int64_t* where, uint8_t* finite) {
  thread_local Scratch scratch;
  const int64_t parts = (columns + kSearchedPerChunk - 1) / kSearchedPerChunk;
  Found* found = scratch.get<Found>(rows * parts);
  for_each_chunk(static_cast<int>(rows * parts), [&](int chunk) {
    const int64_t row = chunk / parts, begin = chunk % parts * kSearchedPerChunk;
    const int64_t end = begin + kSearchedPerChunk < columns ? begin + kSearchedPerChunk : columns;
    found[chunk] = search(x + row * columns, begin, end);
  });
  for (int64_t row = 0; row < rows; ++row) {
    Found best = found[row * parts];
    for (int64_t part = 1; part < parts; ++part) {
      const Found& other = found[row * parts + part];
      if (other.largest > best.largest) {
        best.largest = other.largest;
        best.segment = other.segment;
      }
      best.spoilt += other.spoilt;
    }
    finite[row] = std::isfinite(best.largest) && best.spoilt == 0.0f;
    int64_t at = best.segment;
    const int64_t last = at + kSegment < columns ? at + kSegment : columns;
    while (at < last && element(x + row * columns + at) != best.largest) ++at;
    where[row] = at < last ? at : 0;
  }
}

// x: [rows, columns] of `kind`; where: [rows]; finite: [rows], 0 if the row has NaN or its largest number is infinite.
void largest(const void* x, int64_t rows, int64_t columns, int32_t kind, int64_t* where, uint8_t* finite) {
  if (kind == kFloat32) {
    largest_of_rows(static_cast<const float*>(x), rows, columns, where, finite);
  } else {
    largest_of_rows(static_cast<const uint16_t*>(x), rows, columns, where, finite);
  }
}

}  // namespace
