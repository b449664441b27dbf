// The product y = activation(x W^T + b). Included once by each instruction set, after its Lanes.
//
// Weights are stored in panels of sixteen outputs, one output per lane. bfloat16 inputs are in pairs, 32 bits
// per lane, so that a load, a mask and a shift give two float32 operands. With int8 a lane holds four inputs,
// with four bits eight, and blocks of 32 inputs follow one another as one stream, each after its scales.
// Every output has one accumulator (with int8 and four bits, one more for its block) and adds its inputs in
// ascending order, whatever the number of rows, panels and threads: a row has the same bits alone and among
// others.
#pragma once
#include "elements.h"
#include "functions.h"
#include "int4_blocks.h"
#include "interface.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int kPanel = 16;
constexpr int kRowsPerTile = 5;   // ten accumulators; with twelve, compilers spill two of them
constexpr int kWidestVector = 4;  // panels of a tile of one row of floats: eight chains hide the latency of a sum
constexpr int64_t kCachedBytes = 256 << 10;  // activations that stay in the second cache beside the weights
constexpr int64_t kRowsAtOnce = 512;         // bound on the packed activations
constexpr int64_t kPackedByCaller = 16;      // rows up to which waking another thread does not pay
constexpr int64_t kChunkBytes = 96 << 10;    // weights of a chunk: microseconds, so that threads end together

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : least(x, high); }

// Storage and multiplication of weights of one type. A `Weight` is a block of `kInputs` inputs of a panel's outputs;
// such a block of inputs of a row is kept as `kActivations` activations, `rows` apart.
struct BfloatPairs {
  using Element = uint16_t;
  struct Weight {
    uint32_t pairs[kPanel];
  };
  using Activation = Lanes::Activation;
  static constexpr int kInputs = 2;
  static constexpr bool kOrdered = false;
  static constexpr int kActivations = Lanes::kActivationsPerPair;
  static constexpr int kPanels = Lanes::kPanelsPerTile;
  static constexpr int kMostRows = kRowsPerTile;
  static constexpr int kOneRowPanels = kWidestVector;
  static void keep(Activation* at, int rows, const Element* x, int64_t left) {
    if constexpr (kActivations == 1) {  // in the layout of memory
      if (left > 1) {
        std::memcpy(at, x, sizeof(Activation));
        return;
      }
    }
    Lanes::keep_pair(at, rows, widened(x[0]), left > 1 ? widened(x[1]) : 0.0f);
  }
  template <int kRows, int kPanels>
  static void add(Lanes (&sums)[kPanels][kRows], const Weight* const (&weights)[kPanels], const Activation* x) {
    const uint32_t* pairs[kPanels];
    for (int p = 0; p < kPanels; ++p) pairs[p] = weights[p]->pairs;
    Lanes::add_pairs<kRows, kPanels>(sums, pairs, x);
  }
};

struct SingleFloats {
  using Element = float;
  struct Weight {
    float singles[kPanel];
  };
  using Activation = float;
  static constexpr int kInputs = 1;
  static constexpr bool kOrdered = false;
  static constexpr int kActivations = 1;
  static constexpr int kPanels = Lanes::kPanelsPerTile;
  static constexpr int kMostRows = kRowsPerTile;
  static constexpr int kOneRowPanels = kWidestVector;
  static void keep(Activation* at, int, const Element* x, int64_t) { at[0] = x[0]; }
  template <int kRows, int kPanels>
  static void add(Lanes (&sums)[kPanels][kRows], const Weight* const (&weights)[kPanels], const Activation* x) {
    for (int p = 0; p < kPanels; ++p) {
      const Lanes weight = Lanes::load(weights[p]->singles);
      for (int row = 0; row < kRows; ++row) sums[p][row] = Lanes::fused(weight, Lanes::all(x[row]), sums[p][row]);
    }
  }
};

// Rows that are converted to int8, each block of inputs with its own scale, for weights that are integers
// times a scale of their block. Sums of a block are integers, so they are exact; they are scaled and added to
// those of the output as float32.
template <typename T, typename Block>
struct ScaledRows {
  using Element = T;
  using Weight = Block;
  using Activation = uint32_t;
  static constexpr int kInputs = kScaled;
  static constexpr bool kOrdered = true;
  static constexpr int kActivations = sizeof(Int8Inputs) / sizeof(Activation);
  static constexpr int kPanels = WholeLanes::kPanelsPerTile;
  static constexpr int kMostRows = WholeLanes::kRowsPerTile;
  static constexpr int kOneRowPanels = 1;  // blocks are chains of their own, and one stream is read faster than four
  static void keep(Activation* at, int rows, const Element* x, int64_t left) {
    const Int8Inputs block = as_int8(x, static_cast<int>(least(left, kScaled)));
    Activation each[kActivations];
    std::memcpy(each, &block, sizeof block);
    for (int i = 0; i < kActivations; ++i) at[i * rows] = each[i];
  }
  template <int kRows, int kPanels>
  static void add_scaled(Lanes (&sums)[kPanels][kRows], const WholeLanes (&block)[kPanels][kRows],
                         const Weight* const (&weights)[kPanels], const Activation* x) {
    const auto scale_of = [x](int row) {
      float scale;
      std::memcpy(&scale, x + kQuads * kRows + row, sizeof scale);
      return scale;
    };
    for (int p = 0; p < kPanels; ++p) {
      const Lanes scale = Lanes::load_float16(weights[p]->scales);
      for (int row = 0; row < kRows; ++row) {
        sums[p][row] = Lanes::fused(block[p][row].as_floats(), scale * Lanes::all(scale_of(row)), sums[p][row]);
      }
    }
  }
};

template <typename T>
struct ScaledInt8 : ScaledRows<T, Int8Block> {
  template <int kRows, int kPanels>
  static void add(Lanes (&sums)[kPanels][kRows], const Int8Block* const (&weights)[kPanels], const uint32_t* x) {
    WholeLanes block[kPanels][kRows];
    for (int row = 0; row < kRows; ++row) {
      const WholeLanes start = WholeLanes::start(x[(kQuads + 1) * kRows + row]);
      for (int p = 0; p < kPanels; ++p) block[p][row] = start;
    }
    for (int quad = 0; quad < kQuads; ++quad) {
      const int8_t* numbers[kPanels];
      for (int p = 0; p < kPanels; ++p) numbers[p] = weights[p]->numbers[quad];
      WholeLanes::add_quads<kRows, kPanels>(block, numbers, x + quad * kRows);
    }
    ScaledInt8::add_scaled(sums, block, weights, x);
  }
};

// Initial sums of a block: for each output, minus its zero times the sum of the block's inputs. `start` is
// -128 times that sum of inputs.
inline WholeLanes start_of(const Int4Block&, int32_t start) { return WholeLanes::all(start / (128 / kNibbleOffset)); }
inline WholeLanes start_of(const Int4ZerosBlock& block, int32_t start) {
  return WholeLanes::products(block.zeros, start / 128);
}

// Block: Int4Block or Int4ZerosBlock.
template <typename T, typename Block>
struct ScaledInt4 : ScaledRows<T, Block> {
  static constexpr int kPanels = 1;
  static constexpr int kMostRows = WholeLanes::kNibbleRowsPerTile;
  template <int kRows, int kPanels>
  static void add(Lanes (&sums)[kPanels][kRows], const Block* const (&weights)[kPanels], const uint32_t* x) {
    WholeLanes block[kPanels][kRows];
    for (int row = 0; row < kRows; ++row) {
      const int32_t start = static_cast<int32_t>(x[(kQuads + 1) * kRows + row]);
      for (int p = 0; p < kPanels; ++p) block[p][row] = start_of(*weights[p], start);
    }
    const uint8_t* numbers[kPanels];
    for (int p = 0; p < kPanels; ++p) numbers[p] = weights[p]->numbers[0];
    WholeLanes::add_nibbles<kRows, kPanels>(block, numbers, x);
    ScaledInt4::add_scaled(sums, block, weights, x);
  }
};

// Returns the outputs of a layer's own matrix.
inline int64_t own_outputs(const LinearLayer& layer) { return layer.part > 0 ? layer.part : layer.outputs; }

// Final steps for the sums of a panel's outputs: bias, activation and rounding.
template <typename T>
class PanelOutputs {
 public:
  PanelOutputs(const LinearLayer& layer, int64_t panel)
      : activation_(layer.activation),
        output_(panel * kPanel),
        count_(static_cast<int>(least(kPanel, own_outputs(layer) - output_))) {
    const auto* bias = static_cast<const T*>(layer.bias);
    added_ = bias == nullptr ? Lanes::zero() : load_some(bias + output_, count_);
  }
  void store(Lanes sum, T* row) const { store_some(row + output_, count_, activated(sum + added_, activation_)); }

 private:
  int32_t activation_;
  int64_t output_;
  int count_;
  Lanes added_;
};

// Copies the inputs of a block out of the row `x` in the order of the matrix; returns their number.
template <typename T>
inline int gather_inputs(const LinearLayer& layer, const T* x, int64_t block, T* out) {
  const int count = static_cast<int>(least(layer.inputs - block * kScaled, kScaled));
  for (int i = 0; i < count; ++i) out[i] = x[layer.order[block * kScaled + i]];
  return count;
}

// Calls multiply(panel, end of panels, row tile, end of row tiles) for blocks of row tiles whose inputs stay cached
// while a group of panels is multiplied.
template <typename Multiply>
void for_each_tile_block(int64_t tiles, int64_t tiles_per_block, int64_t panels, int64_t panel_bytes,
                         const Multiply& multiply) {
  const int64_t blocks = (tiles + tiles_per_block - 1) / tiles_per_block;
  const int64_t wide = kWidestVector;
  const int64_t per_group = (clamp(kChunkBytes / panel_bytes, 1, panels) + wide - 1) / wide * wide;
  const int64_t groups = (panels + per_group - 1) / per_group;
  for_each_chunk(static_cast<int>(blocks * groups), [&](int chunk) {
    const int64_t block = chunk / groups, group = chunk % groups;
    multiply(group * per_group, least((group + 1) * per_group, panels), block * tiles_per_block,
             least((block + 1) * tiles_per_block, tiles));
  });
}

// The whole product, computed in blocks of rows that bound the memory of the packed inputs.
template <typename Call, int64_t kAtOnce>
void run_rows(const LinearLayer& layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  using Element = typename Call::Element;
  static thread_local Scratch scratch;
  for (int64_t first = 0; first < rows; first += kAtOnce) {
    const int64_t some = least(rows - first, kAtOnce);
    auto* packed = scratch.get<typename Call::Packed>(Call::packed_size(layer, some));
    Call(layer, static_cast<const Element*>(x) + first * x_stride, x_stride, some,
         static_cast<Element*>(out) + first * layer.outputs, packed)
        .run();
  }
}

template <typename Format>
class LinearCall {
  using Weight = typename Format::Weight;
  using Activation = typename Format::Activation;
  static constexpr int kMostRows = Format::kMostRows;

 public:
  using Element = typename Format::Element;
  using Packed = Activation;

  LinearCall(const LinearLayer& layer, const Element* x, int64_t x_stride, int64_t rows, Element* out,
             Activation* packed)
      : layer_(layer),
        x_(x),
        x_stride_(x_stride),
        rows_(rows),
        out_(out),
        packed_(packed),
        blocks_(blocks_of(layer)),
        panels_((own_outputs(layer) + kPanel - 1) / kPanel),
        tiles_((rows + kMostRows - 1) / kMostRows) {}

  static int64_t packed_size(const LinearLayer& layer, int64_t rows) {
    return rows * blocks_of(layer) * Format::kActivations;
  }

  void run() const {
    const int tiles = static_cast<int>(tiles_);
    if (rows_ <= kPackedByCaller) {
      for (int tile = 0; tile < tiles; ++tile) pack(tile);
    } else {
      for_each_chunk(tiles, [this](int tile) { pack(tile); });
    }
    // Blocks of rows whose activations stay cached during the loop over panels.
    const int64_t row_bytes = blocks_ * Format::kActivations * static_cast<int64_t>(sizeof(Activation));
    const int64_t tiles_per_block = clamp(kCachedBytes / (row_bytes * kMostRows), 1, tiles_);
    const int64_t panel_bytes = blocks_ * static_cast<int64_t>(sizeof(Weight));
    for_each_tile_block(
        tiles_, tiles_per_block, panels_, panel_bytes,
        [this](int64_t panel, int64_t end, int64_t tile, int64_t last) { multiply(panel, end, tile, last); });
  }

 private:
  static int64_t blocks_of(const LinearLayer& layer) { return (layer.inputs + Format::kInputs - 1) / Format::kInputs; }

  // Tiles share the rows evenly: six rows are three and three, not five and one.
  int64_t first_row(int64_t tile) const { return rows_ * tile / tiles_; }

  // Copies activations of a tile's rows side by side: rows a power of two apart would map to one set of the cache.
  void pack(int64_t tile) const {
    const int64_t first = first_row(tile), end = first_row(tile + 1);
    const int rows = static_cast<int>(end - first);
    Activation* at = packed_ + first * blocks_ * Format::kActivations;
    int row = 0;
    if constexpr (kTurned) {
      const int64_t turned = layer_.inputs / (4 * Format::kInputs) * 4;
      for (; row + 4 <= rows; row += 4) {
        for (int64_t block = 0; block < turned; block += 4) turn(at + block * rows + row, rows, first + row, block);
        for (int each = row; each < row + 4; ++each) keep_row(at + each, rows, first + each, turned);
      }
    }
    for (; row < rows; ++row) keep_row(at + row, rows, first + row, 0);
  }

  void keep_row(Activation* at, int rows, int64_t row, int64_t block) const {
    const Element* x = x_ + row * x_stride_;
    if constexpr (Format::kOrdered) {
      if (layer_.order != nullptr) {
        for (; block < blocks_; ++block) {
          Element gathered[kScaled];
          const int count = gather_inputs(layer_, x, block, gathered);
          Format::keep(at + block * rows * Format::kActivations, rows, gathered, count);
        }
        return;
      }
    }
    for (; block < blocks_; ++block) {
      Format::keep(at + block * rows * Format::kActivations, rows, x + block * Format::kInputs,
                   layer_.inputs - block * Format::kInputs);
    }
  }

  // Copies four blocks of four rows whose activations are 32 bits in memory: 16 bytes at once, not four.
  void turn(Activation* at, int rows, int64_t row, int64_t block) const {
    __m128 part[4];
    for (int i = 0; i < 4; ++i) {
      const Element* x = x_ + (row + i) * x_stride_ + block * Format::kInputs;
      part[i] = _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    }
    _MM_TRANSPOSE4_PS(part[0], part[1], part[2], part[3]);
    for (int i = 0; i < 4; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at + i * rows), _mm_castps_si128(part[i]));
    }
  }

  void multiply(int64_t panel, int64_t end, int64_t first_tile, int64_t end_tile) const {
    static thread_local Scratch kept;
    const bool one_row = rows_ == 1;
    // Sums are kept in memory, unrounded, while the other tiles use the same part of a panel.
    const int64_t at_once = end_tile - first_tile > 1 ? kBlocksAtOnce : blocks_;
    constexpr int64_t kPerTile = kMostRows * kPanel * Format::kPanels;
    float* sums = kept.get<float>((end_tile - first_tile) * kPerTile);
    while (panel < end) {
      const int64_t most = one_row ? Format::kOneRowPanels : Format::kPanels;
      const int64_t count = end - panel >= most ? most : 1;
      for (int64_t block = 0; block == 0 || block < blocks_; block += at_once) {
        Part part = {panel, block, least(block + at_once, blocks_), true};
        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
          const int64_t first = first_row(tile);
          const int rows = static_cast<int>(first_row(tile + 1) - first);
          float* waiting = sums + (tile - first_tile) * kPerTile;
          if (one_row && count == Format::kOneRowPanels) {
            tile_of<1, Format::kOneRowPanels>(part, first, waiting);
          } else if (count == 1) {
            any_rows<1>(rows, part, first, waiting);
          } else {
            any_rows<Format::kPanels>(rows, part, first, waiting);
          }
          part.from_memory = false;
        }
      }
      panel += count;
    }
  }

  // Blocks [block, end) of a panel and of the panels after it.
  struct Part {
    int64_t panel, block, end;
    bool from_memory;  // no tile has read them yet
  };

  const Weight* stored(int64_t panel) const { return static_cast<const Weight*>(layer_.packed) + panel * blocks_; }

  template <int kPanels, int kRows = kMostRows>
  void any_rows(int rows, const Part& part, int64_t first, float* waiting) const {
    if constexpr (kRows > 1) {
      if (rows < kRows) return any_rows<kPanels, kRows - 1>(rows, part, first, waiting);
    }
    tile_of<kRows, kPanels>(part, first, waiting);
  }

  template <int kRows, int kPanels>
  void tile_of(const Part& part, int64_t first, float* waiting) const {
    Lanes sums[kPanels][kRows];
    for (int p = 0; p < kPanels; ++p) {
      for (int row = 0; row < kRows; ++row) {
        sums[p][row] = part.block == 0 ? Lanes::zero() : Lanes::load(waiting + (p * kRows + row) * kPanel);
      }
    }
    const Activation* x = packed_ + (first * blocks_ + part.block * kRows) * Format::kActivations;
    const Weight* panels[kPanels];
    for (int p = 0; p < kPanels; ++p) panels[p] = stored(part.panel + p) + part.block;
    for (int64_t block = 0; block < part.end - part.block; ++block) {
      // One index for all panels: compilers keep moving pointers in a vector, which takes the units of the products.
      const Weight* weights[kPanels];
      for (int p = 0; p < kPanels; ++p) weights[p] = panels[p] + block;
      if (Lanes::kReadAhead > 0 && part.from_memory) {
        for (const Weight* weight : weights) ask_ahead(weight, sizeof(Weight));
      }
      Format::template add<kRows, kPanels>(sums, weights, x);
      x += kRows * Format::kActivations;
    }
    if (part.end < blocks_) {
      for (int p = 0; p < kPanels; ++p) {
        for (int row = 0; row < kRows; ++row) sums[p][row].store(waiting + (p * kRows + row) * kPanel);
      }
      return;
    }
    for (int p = 0; p < kPanels; ++p) {
      const PanelOutputs<Element> outputs(layer_, part.panel + p);
      for (int row = 0; row < kRows; ++row) outputs.store(sums[p][row], out_ + (first + row) * layer_.outputs);
    }
  }

  static constexpr bool kTurned =
      Format::kActivations == 1 && sizeof(Activation) == 4 && sizeof(Element) * Format::kInputs == 4;
  // Number of blocks of a tile's panels that stay in the first cache during the loop over tiles.
  static constexpr int64_t kBlocksAtOnce =
      (Format::kPanels > 2 ? 8 << 10 : 12 << 10) / static_cast<int64_t>(sizeof(Weight));

  const LinearLayer& layer_;
  const Element* x_;
  int64_t x_stride_;
  int64_t rows_;
  Element* out_;
  Activation* packed_;
  int64_t blocks_, panels_, tiles_;
};

template <typename Format>
void run_linear(const LinearLayer& layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  run_rows<LinearCall<Format>, kRowsAtOnce>(layer, x, x_stride, rows, out);
}

// Returns the place in a row of y of the outputs after those of the layer's own matrix.
inline void* after(const LinearLayer& layer, void* out) {
  return static_cast<char*>(out) + own_outputs(layer) * (layer.kind == kBfloat16 ? 2 : 4);
}

void linear(const LinearLayer* layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  const bool bfloat = layer->kind == kBfloat16;
  if (layer->packing == kInt8) {
    const auto run = bfloat ? run_linear<ScaledInt8<uint16_t>> : run_linear<ScaledInt8<float>>;
    run(*layer, x, x_stride, rows, out);
  } else if (layer->packing == kInt4) {
    const auto run = bfloat ? run_linear<ScaledInt4<uint16_t, Int4Block>> : run_linear<ScaledInt4<float, Int4Block>>;
    run(*layer, x, x_stride, rows, out);
  } else if (layer->packing == kInt4Zeros) {
    const auto run =
        bfloat ? run_linear<ScaledInt4<uint16_t, Int4ZerosBlock>> : run_linear<ScaledInt4<float, Int4ZerosBlock>>;
    run(*layer, x, x_stride, rows, out);
  } else {
    const auto run = bfloat ? run_linear<BfloatPairs> : run_linear<SingleFloats>;
    run(*layer, x, x_stride, rows, out);
  }
  if (layer->rest != nullptr) linear(layer->rest, x, x_stride, rows, after(*layer, out));
}

}  // namespace
