// The matrix unit's instructions as plain C++, for CPUs that have none. Included before a source that uses them.
//
// Sums of bfloat16: even and odd inputs apart from zero, then both together, then to the tile, as the unit does;
// denormals are kept, which it flushes.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
inline thread_local Shapes shapes;
inline thread_local uint8_t tiles[8][16][64];

inline void configure(const void* at) {
  std::memcpy(&shapes, at, sizeof shapes);
  if (shapes.palette != 1) std::abort();
  for (int tile = 0; tile < 8; ++tile) {
    if (shapes.rows[tile] > 16 || shapes.row_bytes[tile] > 64) std::abort();
  }
  std::memset(tiles, 0, sizeof tiles);
}
inline void release() { shapes = {}; }
inline void zero(int tile) { std::memset(tiles[tile], 0, sizeof tiles[tile]); }
inline void load(int tile, const void* at, int64_t pitch) {
  if (shapes.palette != 1) std::abort();
  zero(tile);
  for (int row = 0; row < shapes.rows[tile]; ++row) {
    std::memcpy(tiles[tile][row], static_cast<const char*>(at) + row * pitch, shapes.row_bytes[tile]);
  }
}
inline void store(int tile, void* at, int64_t pitch) {
  if (shapes.palette != 1) std::abort();
  for (int row = 0; row < shapes.rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(at) + row * pitch, tiles[tile][row], shapes.row_bytes[tile]);
  }
}

// Sides that do not fit one another end a program that has a unit.
inline void check(int sums, int left, int right) {
  if (shapes.rows[sums] != shapes.rows[left] || shapes.row_bytes[sums] != shapes.row_bytes[right] ||
      shapes.row_bytes[left] != shapes.rows[right] * 4) {
    std::abort();
  }
}
template <typename T>
T* row_of(int tile, int row) {
  return reinterpret_cast<T*>(tiles[tile][row]);
}

inline float wide(uint16_t bfloat16) {
  const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
inline void add_bfloat16(int sums, int left, int right) {
  check(sums, left, right);
  for (int row = 0; row < shapes.rows[sums]; ++row) {
    float even[16] = {}, odd[16] = {};
    for (int k = 0; k < shapes.rows[right]; ++k) {
      const float first = wide(row_of<uint16_t>(left, row)[2 * k]), second = wide(row_of<uint16_t>(left, row)[2 * k + 1]);
      const uint16_t* pairs = row_of<uint16_t>(right, k);
      for (int column = 0; column < 16; ++column) {
        even[column] = std::fmaf(first, wide(pairs[2 * column]), even[column]);
        odd[column] = std::fmaf(second, wide(pairs[2 * column + 1]), odd[column]);
      }
    }
    for (int column = 0; column < 16; ++column) row_of<float>(sums, row)[column] += even[column] + odd[column];
  }
}
inline void add_int8(int sums, int left, int right) {
  check(sums, left, right);
  for (int row = 0; row < shapes.rows[sums]; ++row) {
    for (int k = 0; k < shapes.rows[right]; ++k) {
      const int8_t *four = row_of<int8_t>(left, row) + 4 * k, *quads = row_of<int8_t>(right, k);
      for (int column = 0; column < 16; ++column) {
        for (int i = 0; i < 4; ++i) row_of<int32_t>(sums, row)[column] += four[i] * quads[4 * column + i];
      }
    }
  }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(at) emulated::configure(at)
#define _tile_release() emulated::release()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, at, pitch) emulated::load(tile, at, pitch)
#define _tile_stored(tile, at, pitch) emulated::store(tile, at, pitch)
#define _tile_dpbf16ps(sums, left, right) emulated::add_bfloat16(sums, left, right)
#define _tile_dpbssd(sums, left, right) emulated::add_int8(sums, left, right)
