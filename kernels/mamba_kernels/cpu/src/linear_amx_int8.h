// The product y = activation(x W^T + b) of weights of eight and four bits by the matrix unit (AMX). Included
// after Lanes.
//
// The numbers of a block of sixteen outputs have the layout of one operand of the unit, those of sixteen rows
// that of the other. One instruction computes the integer sums of a block, which lanes scale and add to those
// of the outputs in the same order as without the unit. So a row has the same bits with every instruction
// set, and few rows, which would leave most of a tile empty, are multiplied by lanes. A panel of four bits is
// converted to int8 once for all tiles of rows.
#pragma once
#include "tiles_amx.h"

namespace {

// Rows up to which lanes multiply. Measured: with up to 26 rows they take 0.4 to 1.0 of the time of one or two tiles of
// rows, much of which would be empty; from 27 to 32 rows and from 48 on they take longer.
constexpr int64_t kLeftToLanes = 26;

// A block of inputs of sixteen rows.
struct alignas(64) Int8TileInputs {
  int8_t numbers[kSide][kScaled];
  float scales[kSide];
};

template <typename T, typename Block>
class Int8TileLinear {
 public:
  using Element = T;
  using Packed = Int8TileInputs;

  Int8TileLinear(const LinearLayer& layer, const T* x, int64_t x_stride, int64_t rows, T* out, Int8TileInputs* tiles)
      : layer_(layer),
        x_(x),
        x_stride_(x_stride),
        rows_(rows),
        out_(out),
        tiles_(tiles),
        blocks_((layer.inputs + kScaled - 1) / kScaled),
        panels_((own_outputs(layer) + kPanel - 1) / kPanel),
        down_((rows + kSide - 1) / kSide) {}

  static int64_t packed_size(const LinearLayer& layer, int64_t rows) {
    return (rows + kSide - 1) / kSide * ((layer.inputs + kScaled - 1) / kScaled);
  }

  void run() const {
    const int down = static_cast<int>(down_);
    for_each_chunk(down, [this](int tile) { fill(tile); });
    const int64_t tile_bytes = blocks_ * static_cast<int64_t>(sizeof(Int8TileInputs));
    const int64_t panel_bytes = blocks_ * static_cast<int64_t>(sizeof(Block));
    for_each_tile_block(
        down_, cached_tiles(down_, tile_bytes), panels_, panel_bytes,
        [this](int64_t panel, int64_t end, int64_t tile, int64_t last) { multiply(panel, end, tile, last); });
  }

 private:
  void fill(int64_t row_tile) const {
    Int8TileInputs* to = tiles_ + row_tile * blocks_;
    for (int r = 0; r < kSide; ++r) {
      const int64_t row = row_tile * kSide + r;
      for (int64_t k = 0; k < blocks_; ++k) {
        Int8Inputs block = {};
        const T* x = x_ + row * x_stride_;
        if (row < rows_ && layer_.order != nullptr) {
          T gathered[kScaled];
          const int count = gather_inputs(layer_, x, k, gathered);
          block = as_int8(gathered, count);
        } else if (row < rows_) {
          const int count = static_cast<int>(least(layer_.inputs - k * kScaled, kScaled));
          block = as_int8(x + k * kScaled, count);
        }
        std::memcpy(to[k].numbers[r], block.numbers, sizeof block.numbers);
        to[k].scales[r] = block.scale;
      }
    }
  }

  void multiply(int64_t panel, int64_t end, int64_t tile, int64_t end_tile) const {
    static thread_local Scratch kept;
    Int8Block* const wide = std::is_same_v<Block, Int8Block> ? nullptr : kept.get<Int8Block>(blocks_);
    const TileShapes shapes(kSide, kScaled);
    memory_is_read();
    _tile_loadconfig(&shapes);
    for (; panel < end; ++panel) {
      const Int8Block* weights = as_int8_panel(static_cast<const Block*>(layer_.packed) + panel * blocks_, wide);
      for (int64_t at = tile; at < end_tile; ++at) {
        add_blocks(weights, panel, at);
      }
    }
    _tile_release();
  }

  static const Int8Block* as_int8_panel(const Int8Block* panel, Int8Block*) { return panel; }
  template <typename Narrow>
  const Int8Block* as_int8_panel(const Narrow* panel, Int8Block* wide) const {
    for (int64_t block = 0; block < blocks_; ++block) widen(panel[block], wide + block);
    memory_is_read();
    return wide;
  }

  void add_blocks(const Int8Block* weights, int64_t panel, int64_t row_tile) const {
    const Int8TileInputs* inputs = tiles_ + row_tile * blocks_;
    alignas(64) int32_t products[kWide][kSide * kPanel];
    Lanes sums[kSide];
    for (Lanes& sum : sums) sum = Lanes::zero();
    std::memset(products, 0, sizeof products);
    const auto add = [&](int64_t k, int slot) {
      const Lanes scale = Lanes::load_float16(weights[k].scales);
      for (int r = 0; r < kSide; ++r) {
        const Lanes product = WholeLanes::load(products[slot] + r * kPanel).as_floats();
        sums[r] = Lanes::fused(product, scale * Lanes::all(inputs[k].scales[r]), sums[r]);
      }
    };
    int64_t k = 0;
    for (; k + kWide <= blocks_; k += kWide) {  // four products in flight hide the latency of each
      clear_sums();
      _tile_loadd(4, inputs[k].numbers, kScaled);
      _tile_loadd(6, weights[k].numbers, kTilePitch);
      _tile_dpbssd(0, 4, 6);
      _tile_loadd(5, inputs[k + 1].numbers, kScaled);
      _tile_loadd(7, weights[k + 1].numbers, kTilePitch);
      _tile_dpbssd(1, 5, 7);
      _tile_loadd(4, inputs[k + 2].numbers, kScaled);
      _tile_loadd(6, weights[k + 2].numbers, kTilePitch);
      _tile_dpbssd(2, 4, 6);
      _tile_loadd(5, inputs[k + 3].numbers, kScaled);
      _tile_loadd(7, weights[k + 3].numbers, kTilePitch);
      _tile_dpbssd(3, 5, 7);
      store_sums(products);
      for (int slot = 0; slot < kWide; ++slot) add(k + slot, slot);
    }
    for (; k < blocks_; ++k) {
      _tile_zero(0);
      _tile_loadd(4, inputs[k].numbers, kScaled);
      _tile_loadd(6, weights[k].numbers, kTilePitch);
      _tile_dpbssd(0, 4, 6);
      _tile_stored(0, products[0], kTilePitch);
      add(k, 0);
    }
    alignas(64) float out[kSide * kPanel];
    for (int r = 0; r < kSide; ++r) sums[r].store(out + r * kPanel);
    const int64_t first = row_tile * kSide;
    finish_rows(layer_, panel, least(kSide, rows_ - first), out, out_ + first * layer_.outputs);
  }

  const LinearLayer& layer_;
  const T* x_;
  int64_t x_stride_;
  int64_t rows_;
  T* out_;
  Int8TileInputs* tiles_;
  int64_t blocks_, panels_;
  int64_t down_;
};

// Block: Int8Block, Int4Block or Int4ZerosBlock. Multiplies by the layer's own matrix alone.
template <typename Block>
void scaled_linear_amx(const LinearLayer& layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  if (rows <= kLeftToLanes) {
    LinearLayer own = layer;
    own.rest = nullptr;
    return linear(&own, x, x_stride, rows, out);
  }
  const auto run = layer.kind == kBfloat16 ? run_rows<Int8TileLinear<uint16_t, Block>, kTileRowsAtOnce>
                                           : run_rows<Int8TileLinear<float, Block>, kTileRowsAtOnce>;
  run(layer, x, x_stride, rows, out);
}

}  // namespace
