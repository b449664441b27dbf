// Code shared by the products of the matrix unit (AMX). Included after Lanes and linear.h.
#pragma once
#include "linear.h"

namespace {

constexpr int kSide = 16;                    // rows and outputs of a tile of sums
constexpr int kTilePitch = 64;               // bytes of a row of any tile but those of int8 rows
constexpr int kWide = 4;                     // panels at once for few rows, or blocks of int8: all four tiles of sums
constexpr int64_t kCachedRows = 512 << 10;   // bytes of rows that stay in the second cache
constexpr int64_t kTileRowsAtOnce = 2048;

// Tiles 4 and 5 hold rows of inputs, 6 and 7 weights, 0 to 3 sums; all but the weights have `height` rows.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileShapes(int height, int input_bytes = kTilePitch) {
    for (int tile = 0; tile < 8; ++tile) {
      const bool input = tile == 4 || tile == 5;
      row_bytes[tile] = static_cast<uint16_t>(input ? input_bytes : kTilePitch);
      rows[tile] = static_cast<uint8_t>(tile < 6 ? height : input_bytes / 4);
    }
  }
};

// Makes stored data visible to tile loads: compilers do not know that these instructions read memory.
inline void memory_is_read() { __asm__ volatile("" ::: "memory"); }

// Clears all four tiles of sums.
inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
template <typename T>
inline void store_sums(T (&sums)[4][kSide * kPanel]) {
  static_assert(sizeof(T) * kPanel == kTilePitch);
  _tile_stored(0, sums[0], kTilePitch);
  _tile_stored(1, sums[1], kTilePitch);
  _tile_stored(2, sums[2], kTilePitch);
  _tile_stored(3, sums[3], kTilePitch);
}

// Stores the sums of a panel's outputs, [rows, kPanel].
template <typename T>
void finish_rows(const LinearLayer& layer, int64_t panel, int64_t rows, const float* sums, T* out) {
  const PanelOutputs<T> outputs(layer, panel);
  for (int64_t row = 0; row < rows; ++row) outputs.store(Lanes::load(sums + row * kPanel), out + row * layer.outputs);
}

// Returns the number of row tiles whose inputs stay cached: even, since two are multiplied at once.
inline int64_t cached_tiles(int64_t row_tiles, int64_t tile_bytes) {
  return (clamp(kCachedRows / tile_bytes, 1, row_tiles) + 1) / 2 * 2;
}

}  // namespace
