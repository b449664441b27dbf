// Blocks of 32 inputs as int8: of sixteen outputs of a matrix, with a scale for each output, and of a row
// that the matrix multiplies, with one scale. Included after Lanes.
#pragma once
#include <cstdint>
#include <cstring>

#include "elements.h"

namespace {

constexpr int kScaled = 32;          // inputs that share a scale
constexpr int kQuads = kScaled / 4;  // four inputs of an output are one lane

// A block of a matrix: scale * number, with numbers in -128..127; -128 comes from checkpoints alone.
struct Int8Block {
  uint16_t scales[kLanes];  // float16
  int8_t numbers[kQuads][kLanes * 4];
};

// A block of a row: scale * number, with numbers in -127..127.
struct Int8Inputs {
  int8_t numbers[kScaled];
  float scale;
  uint32_t start;  // -128 times the sum of the numbers, modulo 2^32: see WholeLanes::start
};

// A block whose largest number is below this limit becomes zero, since its scale would not be a normal number.
constexpr float kLeastOfBlock = 1.5e-36f;

// Converts the first `count` inputs of a block; the others are zero. The scale of a block with NaN is NaN.
template <typename T>
inline Int8Inputs as_int8(const T* x, int count) {
  const Lanes low = load_some(x, count), high = count > kLanes ? load_some(x + kLanes, count - kLanes) : Lanes::zero();
  Int8Inputs out;
  const float largest = Lanes::largest_size(low, high);
  const bool counts = !(largest < kLeastOfBlock);
  const Lanes inverse = Lanes::all(counts ? 127.0f / largest : 0.0f);
  out.scale = counts ? largest / 127.0f : 0.0f;
  out.start = 0u - 128u * static_cast<uint32_t>(WholeLanes::store_int8(out.numbers, low * inverse, high * inverse));
  return out;
}

}  // namespace
