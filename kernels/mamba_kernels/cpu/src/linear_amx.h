// The bfloat16 product y = activation(x W^T + b) by the matrix unit (AMX). Included after Lanes and linear.h.
//
// A panel of packed weights has the layout of the unit's tiles: sixteen pairs of inputs of sixteen outputs are 1 KB in
// one piece. Rows are copied into tiles of [16, 32] first. One instruction adds 32 inputs to each sum: it adds even and
// odd inputs separately, starting from zero, then both together, then to the sum. That order is the unit's own, so the
// bits differ from those of the other instruction sets; but it is the same for one row and for many, since a single row
// goes through the unit as well.
#pragma once
#include "linear_amx_int8.h"

namespace {

constexpr int kTileInputs = 32;                       // inputs that one instruction adds
constexpr int kTileSteps = kTileInputs / 2;           // pairs of inputs
constexpr int64_t kWeightTile = kTileSteps * kPanel;  // pairs

class TileLinear {
 public:
  using Element = uint16_t;
  using Packed = uint16_t;

  TileLinear(const LinearLayer& layer, const uint16_t* x, int64_t x_stride, int64_t rows, uint16_t* out,
             uint16_t* tiles)
      : layer_(layer),
        x_(x),
        x_stride_(x_stride),
        rows_(rows),
        out_(out),
        tiles_(tiles),
        steps_((layer.inputs + 1) / 2),
        whole_(steps_ / kTileSteps),
        across_((steps_ + kTileSteps - 1) / kTileSteps),
        panels_((own_outputs(layer) + kPanel - 1) / kPanel),
        height_(static_cast<int>(least(rows, kSide))),
        down_((rows + kSide - 1) / kSide) {}

  static int64_t packed_size(const LinearLayer& layer, int64_t rows) {
    const int64_t down = (rows + kSide - 1) / kSide, across = (layer.inputs + kTileInputs - 1) / kTileInputs;
    return down * across * least(rows, kSide) * kTileInputs;
  }

  void run() const {
    const int down = static_cast<int>(down_);
    if (rows_ <= kPackedByCaller) {
      for (int tile = 0; tile < down; ++tile) fill(tile);
    } else {
      for_each_chunk(down, [this](int tile) { fill(tile); });
    }
    const int64_t panel_bytes = steps_ * kPanel * static_cast<int64_t>(sizeof(uint32_t));
    for_each_tile_block(down_, cached_tiles(down_, across_ * height_ * kTilePitch), panels_, panel_bytes,
                  [this](int64_t panel, int64_t end, int64_t tile, int64_t last) { multiply(panel, end, tile, last); });
  }

 private:
  uint16_t* tile(int64_t row_tile, int64_t k) const {
    return tiles_ + (row_tile * across_ + k) * height_ * kTileInputs;
  }

  // Copies the inputs of sixteen rows, tile after tile, with zeros for missing ones.
  void fill(int64_t row_tile) const {
    const int64_t first = row_tile * kSide;
    for (int r = 0; r < height_; ++r) {
      const bool there = first + r < rows_;
      const uint16_t* x = x_ + (first + r) * x_stride_;
      for (int64_t k = 0; k < across_; ++k) {
        uint16_t* to = tile(row_tile, k) + r * kTileInputs;
        const int64_t left = there ? least(layer_.inputs - k * kTileInputs, kTileInputs) : 0;
        if (left > 0) std::memcpy(to, x + k * kTileInputs, static_cast<size_t>(left) * sizeof(uint16_t));
        if (left < kTileInputs) std::memset(to + left, 0, static_cast<size_t>(kTileInputs - left) * sizeof(uint16_t));
      }
    }
  }

  void multiply(int64_t panel, int64_t end, int64_t tile, int64_t end_tile) const {
    const TileShapes shapes(height_);
    memory_is_read();
    _tile_loadconfig(&shapes);
    if (end_tile - tile == 1) {
      for (; panel + kWide <= end; panel += kWide) one_by_four(panel, tile);
    } else {
      for (; panel + 2 <= end; panel += 2) {
        int64_t at = tile;
        for (; at + 2 <= end_tile; at += 2) two_by_two(panel, at);
        for (; at < end_tile; ++at) {
          one_by_one(panel, at);
          one_by_one(panel + 1, at);
        }
      }
    }
    for (; panel < end; ++panel) {
      for (int64_t at = tile; at < end_tile; ++at) one_by_one(panel, at);
    }
    _tile_release();
  }

  // Returns a panel's tiles of weights; a partial last tile is copied and padded with zeros.
  struct Panel {
    const uint32_t* weights;
    alignas(64) uint32_t last[kWeightTile];

    Panel(const TileLinear& call, int64_t panel)
        : weights(static_cast<const uint32_t*>(call.layer_.packed) + panel * call.steps_ * kPanel) {
      const int64_t left = call.steps_ - call.whole_ * kTileSteps;
      if (left == 0) return;
      std::memset(last, 0, sizeof last);
      std::memcpy(last, weights + call.whole_ * kWeightTile, static_cast<size_t>(left * kPanel) * sizeof(uint32_t));
      memory_is_read();
    }
    const uint32_t* tile(const TileLinear& call, int64_t k) const {
      return k < call.whole_ ? weights + k * kWeightTile : last;
    }
  };

  void two_by_two(int64_t panel, int64_t row_tile) const {
    const Panel left(*this, panel), right(*this, panel + 1);
    clear_sums();
    for (int64_t k = 0; k < across_; ++k) {
      _tile_loadd(4, tile(row_tile, k), kTilePitch);
      _tile_loadd(6, left.tile(*this, k), kTilePitch);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, right.tile(*this, k), kTilePitch);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, tile(row_tile + 1, k), kTilePitch);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    alignas(64) float sums[4][kSide * kPanel];
    store_sums(sums);
    finish(panel, row_tile, sums[0]);
    finish(panel + 1, row_tile, sums[1]);
    finish(panel, row_tile + 1, sums[2]);
    finish(panel + 1, row_tile + 1, sums[3]);
  }

  void one_by_four(int64_t panel, int64_t row_tile) const {
    const Panel a(*this, panel), b(*this, panel + 1), c(*this, panel + 2), d(*this, panel + 3);
    clear_sums();
    for (int64_t k = 0; k < across_; ++k) {
      _tile_loadd(4, tile(row_tile, k), kTilePitch);
      _tile_loadd(6, a.tile(*this, k), kTilePitch);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b.tile(*this, k), kTilePitch);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(6, c.tile(*this, k), kTilePitch);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, d.tile(*this, k), kTilePitch);
      _tile_dpbf16ps(3, 4, 7);
    }
    alignas(64) float sums[4][kSide * kPanel];
    store_sums(sums);
    for (int p = 0; p < kWide; ++p) finish(panel + p, row_tile, sums[p]);
  }

  void one_by_one(int64_t panel, int64_t row_tile) const {
    const Panel only(*this, panel);
    _tile_zero(0);
    for (int64_t k = 0; k < across_; ++k) {
      _tile_loadd(4, tile(row_tile, k), kTilePitch);
      _tile_loadd(6, only.tile(*this, k), kTilePitch);
      _tile_dpbf16ps(0, 4, 6);
    }
    alignas(64) float sums[kSide * kPanel];
    _tile_stored(0, sums, kTilePitch);
    finish(panel, row_tile, sums);
  }

  void finish(int64_t panel, int64_t row_tile, const float* sums) const {
    const int64_t first = row_tile * kSide;
    finish_rows(layer_, panel, least(kSide, rows_ - first), sums, out_ + first * layer_.outputs);
  }

  const LinearLayer& layer_;
  const uint16_t* x_;
  int64_t x_stride_;
  int64_t rows_;
  uint16_t* out_;
  uint16_t* tiles_;
  int64_t steps_, whole_, across_, panels_;
  int height_;
  int64_t down_;
};

void linear_amx(const LinearLayer* layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  if (layer->packing == kInt8) {
    scaled_linear_amx<Int8Block>(*layer, x, x_stride, rows, out);
  } else if (layer->packing == kInt4) {
    scaled_linear_amx<Int4Block>(*layer, x, x_stride, rows, out);
  } else if (layer->packing == kInt4Zeros) {
    scaled_linear_amx<Int4ZerosBlock>(*layer, x, x_stride, rows, out);
  } else if (layer->kind == kBfloat16) {
    run_rows<TileLinear, kTileRowsAtOnce>(*layer, x, x_stride, rows, out);
  } else {
    return linear(layer, x, x_stride, rows, out);
  }
  if (layer->rest != nullptr) linear_amx(layer->rest, x, x_stride, rows, after(*layer, out));
}

}  // namespace
