// Rows of a packed matrix with the values that products use, as an embedding looks them up. Included after linear.h,
// which describes the layout of panels.
#pragma once
#include "linear.h"

namespace {

// Reads row `output` of weights in panels of `Pair` inputs of sixteen outputs side by side.
template <typename T, int kPair>
void whole_row(const LinearLayer& layer, int64_t output, T* out) {
  const int64_t steps = (layer.inputs + kPair - 1) / kPair;
  const T* panel = static_cast<const T*>(layer.packed) + output / kPanel * steps * kPanel * kPair;
  const T* lane = panel + output % kPanel * kPair;
  for (int64_t i = 0; i < layer.inputs; ++i) out[i] = lane[i / kPair * kPanel * kPair + i % kPair];
}

inline int number_of(const Int8Block& block, int64_t lane, int i) { return block.numbers[i / 4][lane * 4 + i % 4]; }
template <typename Block>  // Int4Block or Int4ZerosBlock
inline int number_of(const Block& block, int64_t lane, int i) {
  return (block.numbers[i / 8][lane * 4 + i % 4] >> (i / 4 % 2 * 4) & 15) - zero_of(block, static_cast<int>(lane));
}

// Reads row `output` of integers in blocks of inputs, each block after its scales.
template <typename Block, typename T>
void scaled_row(const LinearLayer& layer, int64_t output, T* out) {
  const int64_t blocks = (layer.inputs + kScaled - 1) / kScaled, lane = output % kPanel;
  const auto* weights = static_cast<const Block*>(layer.packed) + output / kPanel * blocks;
  for (int64_t block = 0; block < blocks; ++block) {
    float scales[kPanel], row[kScaled];
    Lanes::load_float16(weights[block].scales).store(scales);
    for (int i = 0; i < kScaled; ++i) row[i] = scales[lane] * static_cast<float>(number_of(weights[block], lane, i));
    const int64_t first = block * kScaled, count = least(layer.inputs - first, kScaled);
    for (int64_t i = 0; i < count; i += kLanes) {
      store_some(out + first + i, static_cast<int>(least(count - i, kLanes)), Lanes::load(row + i));
    }
  }
}

template <typename T, int kPair>
void packed_row(const LinearLayer& layer, int64_t output, T* out) {
  if (layer.packing == kInt8) {
    scaled_row<Int8Block>(layer, output, out);
  } else if (layer.packing == kInt4) {
    scaled_row<Int4Block>(layer, output, out);
  } else if (layer.packing == kInt4Zeros) {
    scaled_row<Int4ZerosBlock>(layer, output, out);
  } else {
    whole_row<T, kPair>(layer, output, out);
  }
}

// Writes out: [rows, inputs] of `out_kind`, which is the layer's kind or float32.
void packed_rows(const LinearLayer* layer, const int32_t* outputs, int64_t rows, void* out, int32_t out_kind) {
  const int64_t width = layer->inputs;
  Scratch narrow;
  for (int64_t row = 0; row < rows; ++row) {
    if (layer->kind == kFloat32) {
      packed_row<float, 1>(*layer, outputs[row], static_cast<float*>(out) + row * width);
    } else if (out_kind == kBfloat16) {
      packed_row<uint16_t, 2>(*layer, outputs[row], static_cast<uint16_t*>(out) + row * width);
    } else {
      uint16_t* rounded = narrow.get<uint16_t>(width);
      packed_row<uint16_t, 2>(*layer, outputs[row], rounded);
      float* wide = static_cast<float*>(out) + row * width;
      for (int64_t i = 0; i < width; ++i) wide[i] = widened(rounded[i]);
    }
  }
}

}  // namespace
