// y = activation(x W^T + b) of bfloat16 by the matrix unit (AMX). Included after Lanes and linear.h.
//
// A panel of packed weights holds, step after step, what a tile of the unit wants: sixteen pairs of inputs, each
// of sixteen outputs, are 1 KB in one piece. Rows are copied into tiles of [16, 32] before. One instruction adds
// 32 inputs to each sum: even and odd ones apart from zero, then both together, then to the sum. That order is
// the unit's, so the bits differ from those of the other instruction sets; but it is the same for one row and for
// many, since one row goes through the unit as well.
//
// Of int8 a panel is first turned into the same tiles, exactly: its numbers are bfloat16, too. A block of 32 inputs is
// one instruction's work; what it gives is scaled and added by lanes, for a scale belongs to a block and an output.
#pragma once
#include "linear.h"

namespace {

constexpr int kSide = 16;                            // rows of a tile of sums, and its outputs
constexpr int kTileInputs = 32;                      // inputs that one instruction adds
constexpr int kTileSteps = kTileInputs / 2;          // pairs of them
constexpr int kTilePitch = 64;                       // bytes of a row of any tile
constexpr int64_t kWeightTile = kTileSteps * kPanel;  // pairs
constexpr int kWide = 4;                             // panels at once for few rows: all four sums
constexpr int64_t kCachedRows = 512 << 10;           // bytes of rows that stay in the second cache
constexpr int64_t kTileRowsAtOnce = 2048;

// Rows of inputs in tiles 4 and 5, weights in 6 and 7, sums in 0 to 3; all are `rows` high but the weights.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileShapes(int height) {
    for (int tile = 0; tile < 8; ++tile) {
      row_bytes[tile] = kTilePitch;
      rows[tile] = static_cast<uint8_t>(tile < 6 ? height : kTileSteps);
    }
  }
};

// What was stored is what tiles load: their instructions do not tell compilers that they read memory.
inline void memory_is_read() { __asm__ volatile("" ::: "memory"); }

// Of all four tiles of sums.
inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
inline void store_sums(float (&sums)[4][kSide * kPanel]) {
  _tile_stored(0, sums[0], kTilePitch);
  _tile_stored(1, sums[1], kTilePitch);
  _tile_stored(2, sums[2], kTilePitch);
  _tile_stored(3, sums[3], kTilePitch);
}

class TileLinear {
 public:
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
        panels_((layer.outputs + kPanel - 1) / kPanel),
        scaled_(layer.packing == kInt8),
        height_(static_cast<int>(least(rows, kSide))),
        down_((rows + kSide - 1) / kSide) {}

  static int64_t tiles_size(const LinearLayer& layer, int64_t rows) {
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
    // Pairs of row tiles whose inputs stay cached while the panels pass by.
    const int64_t tile_bytes = across_ * height_ * kTilePitch;
    const int64_t per_block = (clamp(kCachedRows / tile_bytes, 1, down_) + 1) / 2 * 2;
    const int64_t blocks = (down_ + per_block - 1) / per_block;
    const int64_t panel_bytes = scaled_ ? across_ * static_cast<int64_t>(sizeof(Block))
                                        : steps_ * kPanel * static_cast<int64_t>(sizeof(uint32_t));
    const int64_t per_group = (clamp(kChunkBytes / panel_bytes, 1, panels_) + kWide - 1) / kWide * kWide;
    const int64_t groups = (panels_ + per_group - 1) / per_group;
    for_each_chunk(static_cast<int>(blocks * groups), [&](int chunk) {
      const int64_t block = chunk / groups, group = chunk % groups;
      multiply(group * per_group, least((group + 1) * per_group, panels_), block * per_block,
               least((block + 1) * per_block, down_));
    });
  }

 private:
  uint16_t* tile(int64_t row_tile, int64_t k) const {
    return tiles_ + (row_tile * across_ + k) * height_ * kTileInputs;
  }

  // The inputs of sixteen rows, tile after tile; zero where there are none.
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
    if (scaled_ && rows_ == 1) {
      for (; panel + kWide <= end; panel += kWide) one_row<kWide>(panel);
      for (; panel < end; ++panel) one_row<1>(panel);
    } else if (scaled_) {
      for (; panel < end; ++panel) scaled(panel, tile, end_tile);
    } else if (end_tile - tile == 1) {
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

  // A panel's tiles of weights; the last one, where it is not whole, is copied and filled up with zeros.
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

  using Block = ScaledBytes;
  static_assert(kScaled == kTileInputs, "a block is one instruction's work");

  void scaled(int64_t panel, int64_t row_tile, int64_t end_tile) const {
    static thread_local Scratch kept;
    auto* weights = kept.get<uint32_t>(across_ * kWeightTile);
    const Block* blocks = static_cast<const Block*>(layer_.packed) + panel * across_;
    for (int64_t k = 0; k < across_; ++k) to_bfloat16(blocks[k], weights + k * kWeightTile);
    memory_is_read();
    for (; row_tile < end_tile; ++row_tile) {
      if (height_ <= 4) {
        add_blocks<4>(panel, row_tile, blocks, weights);
      } else if (height_ <= 8) {
        add_blocks<8>(panel, row_tile, blocks, weights);
      } else {
        add_blocks<kSide>(panel, row_tile, blocks, weights);
      }
    }
  }

  // What the unit does with one row, by lanes: its weights need not become tiles then.
  template <int kPanels>
  void one_row(int64_t panel) const {
    const Block* blocks[kPanels];
    Lanes sums[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      blocks[p] = static_cast<const Block*>(layer_.packed) + (panel + p) * across_;
      sums[p] = Lanes::zero();
    }
    const uint16_t* x = tiles_;
    for (int64_t k = 0; k < across_; ++k, x += kTileInputs) {
      Lanes even[kPanels], odd[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        ask_ahead(blocks[p] + k, sizeof(Block));
        even[p] = odd[p] = Lanes::zero();
      }
      for (int i = 0; i < kTileInputs; i += 2) {
        const Lanes first = Lanes::all(widened(x[i])), second = Lanes::all(widened(x[i + 1]));
        for (int p = 0; p < kPanels; ++p) {
          even[p] = Lanes::fused(Lanes::load_int8(blocks[p][k].numbers[i]), first, even[p]);
          odd[p] = Lanes::fused(Lanes::load_int8(blocks[p][k].numbers[i + 1]), second, odd[p]);
        }
      }
      for (int p = 0; p < kPanels; ++p) {
        sums[p] = Lanes::fused(Lanes::load_float16(blocks[p][k].scales), even[p] + odd[p], sums[p]);
      }
    }
    alignas(64) float out[kPanel];
    for (int p = 0; p < kPanels; ++p) {
      sums[p].store(out);
      finish(panel + p, 0, out);
    }
  }

  // Pairs of inputs side by side; float32 of a whole number that small has nothing in its lower half.
  static void to_bfloat16(const Block& block, uint32_t* out) {
    for (int k = 0; k < kTileInputs; k += 2) {
      const __m512i even = _mm512_castps_si512(Lanes::load_int8(block.numbers[k]).x);
      const __m512i odd = _mm512_castps_si512(Lanes::load_int8(block.numbers[k + 1]).x);
      _mm512_store_si512(out + k / 2 * kPanel, _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
    }
  }

  // kRows: at least as many as there are; those beyond are never looked at.
  template <int kRows>
  void add_blocks(int64_t panel, int64_t row_tile, const Block* blocks, const uint32_t* weights) const {
    alignas(64) float products[4][kSide * kPanel];
    alignas(64) float out[kSide * kPanel];
    Lanes sums[kRows];
    for (Lanes& sum : sums) sum = Lanes::zero();
    std::memset(products, 0, sizeof products);
    const auto add = [&](int64_t k, int slot) {
      const Lanes scale = Lanes::load_float16(blocks[k].scales);
      for (int r = 0; r < kRows; ++r) sums[r] = Lanes::fused(scale, Lanes::load(products[slot] + r * kPanel), sums[r]);
    };
    int64_t k = 0;
    for (; k + 4 <= across_; k += 4) {  // four under way hide the time that each takes
      clear_sums();
      _tile_loadd(4, tile(row_tile, k), kTilePitch);
      _tile_loadd(6, weights + k * kWeightTile, kTilePitch);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, tile(row_tile, k + 1), kTilePitch);
      _tile_loadd(7, weights + (k + 1) * kWeightTile, kTilePitch);
      _tile_dpbf16ps(1, 5, 7);
      _tile_loadd(4, tile(row_tile, k + 2), kTilePitch);
      _tile_loadd(6, weights + (k + 2) * kWeightTile, kTilePitch);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(5, tile(row_tile, k + 3), kTilePitch);
      _tile_loadd(7, weights + (k + 3) * kWeightTile, kTilePitch);
      _tile_dpbf16ps(3, 5, 7);
      store_sums(products);
      for (int slot = 0; slot < 4; ++slot) add(k + slot, slot);
    }
    for (; k < across_; ++k) {
      _tile_zero(0);
      _tile_loadd(4, tile(row_tile, k), kTilePitch);
      _tile_loadd(6, weights + k * kWeightTile, kTilePitch);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stored(0, products[0], kTilePitch);
      add(k, 0);
    }
    for (int r = 0; r < kRows; ++r) sums[r].store(out + r * kPanel);
    finish(panel, row_tile, out);
  }

  // Bias, activation and rounding of a tile of sums.
  void finish(int64_t panel, int64_t row_tile, const float* sums) const {
    const int64_t output = panel * kPanel, first = row_tile * kSide;
    const int count = static_cast<int>(least(kPanel, layer_.outputs - output));
    const auto* bias = static_cast<const uint16_t*>(layer_.bias);
    const Lanes added = bias == nullptr ? Lanes::zero() : load_some(bias + output, count);
    const int64_t rows = least(kSide, rows_ - first);
    for (int64_t row = 0; row < rows; ++row) {
      const Lanes sum = activated(Lanes::load(sums + row * kPanel) + added, layer_.activation);
      store_some(out_ + (first + row) * layer_.outputs + output, count, sum);
    }
  }

  const LinearLayer& layer_;
  const uint16_t* x_;
  int64_t x_stride_;
  int64_t rows_;
  uint16_t* out_;
  uint16_t* tiles_;
  int64_t steps_, whole_, across_, panels_;
  bool scaled_;
  int height_;
  int64_t down_;
};

void linear_amx(const LinearLayer* layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  if (layer->kind != kBfloat16) return linear(layer, x, x_stride, rows, out);
  static thread_local Scratch scratch;
  for (int64_t first = 0; first < rows; first += kTileRowsAtOnce) {
    const int64_t some = rows - first < kTileRowsAtOnce ? rows - first : kTileRowsAtOnce;
    auto* tiles = scratch.get<uint16_t>(TileLinear::tiles_size(*layer, some));
    TileLinear(*layer, static_cast<const uint16_t*>(x) + first * x_stride, x_stride, some,
               static_cast<uint16_t*>(out) + first * layer->outputs, tiles)
        .run();
  }
}

}  // namespace
