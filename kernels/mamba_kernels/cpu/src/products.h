// Products of small matrices in the cache. Included after Lanes.
#pragma once
#include "elements.h"

namespace {

constexpr int kTileRows = 4;                        // rows of a tile: eight registers of sums hide their latency
constexpr int kTileVectors = Lanes::kVectorsPerTile;  // vectors of a row of a tile, for eight registers of sums
constexpr int kTileColumns = kTileVectors * kLanes;

// Rounds up, so that a row is a whole number of tiles.
inline int64_t tiled(int64_t columns) { return (columns + kTileColumns - 1) / kTileColumns * kTileColumns; }

template <int kRows>
using Tile = Lanes[kRows][kTileVectors];

// Adds sum_k a[r * a_row + k * a_step] * b[k * b_step + c] to tile[r][c], with k ascending and one accumulator per sum.
template <int kRows>
inline void add_products(Tile<kRows>& tile, const float* a, int64_t a_row, int64_t a_step, const float* b,
                         int64_t b_step, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    for (int v = 0; v < kTileVectors; ++v) {
      const Lanes part = Lanes::load(b + v * kLanes);
      for (int r = 0; r < kRows; ++r) tile[r][v] = Lanes::fused(Lanes::all(a[r * a_row]), part, tile[r][v]);
    }
    a += a_step;
    b += b_step;
  }
}

template <int kRows>
inline void clear(Tile<kRows>& tile) {
  for (auto& row : tile) {
    for (Lanes& part : row) part = Lanes::zero();
  }
}

template <int kRows>
inline void load_tile(Tile<kRows>& tile, const float* at, int64_t stride) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kTileVectors; ++v) tile[r][v] = Lanes::load(at + r * stride + v * kLanes);
  }
}

template <int kRows>
inline void store_tile(const Tile<kRows>& tile, float* at, int64_t stride) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kTileVectors; ++v) tile[r][v].store(at + r * stride + v * kLanes);
  }
}

// Multiplies each column of the tile by its own factor.
template <int kRows>
inline void scale_columns(Tile<kRows>& tile, const float* factors) {
  for (int v = 0; v < kTileVectors; ++v) {
    const Lanes factor = Lanes::load(factors + v * kLanes);
    for (int r = 0; r < kRows; ++r) tile[r][v] = tile[r][v] * factor;
  }
}

template <int kCount>
struct RowCount {
  static constexpr int value = kCount;
};

// Calls body(RowCount, first row) for tiles of kTileRows rows, and for the remaining rows one by one.
template <typename Body>
inline void for_each_row_tile(int64_t rows, const Body& body) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) body(RowCount<kTileRows>{}, row);
  for (; row < rows; ++row) body(RowCount<1>{}, row);
}

// Computes out[c][r] = block[r][c] of sixteen by sixteen, for the first `columns` columns, in groups of four with
// registers that every x86-64 has: numbers are moved, not computed.
inline void turn_block(const float* block, float* out, int64_t out_stride, int64_t columns) {
  for (int64_t c = 0; c < kLanes && c < columns; c += 4) {
    for (int64_t r = 0; r < kLanes; r += 4) {
      __m128 rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = _mm_loadu_ps(block + (r + i) * kLanes + c);
      _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
      for (int i = 0; i < 4 && c + i < columns; ++i) _mm_storeu_ps(out + (c + i) * out_stride + r, rows[i]);
    }
  }
}

// Computes out[c][r] = in[r][c].
template <typename T>
inline void transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, T* out, int64_t out_stride) {
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) out[column * out_stride + row] = in[row * in_stride + column];
  }
}

}  // namespace
