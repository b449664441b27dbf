// Blocks of 32 inputs of sixteen outputs as numbers of four bits; those of an output share a scale, or a
// scale and a zero. Included after Lanes.
#pragma once
#include "int8_blocks.h"

namespace {

constexpr int kNibbleOffset = 8;  // a stored number is the weight's number plus this, so that none is negative

// A block of a matrix: scale * (stored number - 8), with stored numbers in 0..15. The low half of a byte belongs to an
// even quad of inputs and the high half to the quad after it.
struct Int4Block {
  uint16_t scales[kLanes];  // float16
  uint8_t numbers[kQuads / 2][kLanes * 4];
};

// A block of a matrix: scale * (stored number - zero), with a zero for each output.
struct Int4ZerosBlock {
  uint16_t scales[kLanes];  // float16
  uint8_t zeros[kLanes];    // 0..16
  uint8_t numbers[kQuads / 2][kLanes * 4];
};

inline int zero_of(const Int4Block&, int) { return kNibbleOffset; }
inline int zero_of(const Int4ZerosBlock& block, int lane) { return block.zeros[lane]; }

// Writes the weights of a block of four bits as a block of int8.
template <typename Block>
inline void widen(const Block& block, Int8Block* out) {
  std::memcpy(out->scales, block.scales, sizeof block.scales);
  for (int pair = 0; pair < kQuads / 2; ++pair) {
    for (int i = 0; i < kLanes * 4; ++i) {
      const int both = block.numbers[pair][i];
      out->numbers[2 * pair][i] = static_cast<int8_t>((both & 15) - zero_of(block, i / 4));
      out->numbers[2 * pair + 1][i] = static_cast<int8_t>((both >> 4) - zero_of(block, i / 4));
    }
  }
}

}  // namespace
