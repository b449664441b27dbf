// y = activation(x W^T + b). Included once by each instruction set, after its Lanes.
//
// Weights lie in panels of sixteen outputs, one output a lane; of bfloat16 the inputs are in pairs, 32 bits a
// lane, so that a load, a mask and a shift make two float32 operands. Of int8, blocks of 32 inputs follow one
// another, each with its scales before it: one stream to read. Every output has one accumulator (int8: and one
// of its block) and adds its inputs in ascending order, whatever the number of rows, panels and threads: a row
// has the same bits alone and among others.
#pragma once
#include <type_traits>

#include "elements.h"
#include "functions.h"
#include "interface.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int kPanel = 16;
constexpr int kMostRows = 5;      // of a tile: ten accumulators; with twelve, compilers spill two of them
constexpr int kWidestVector = 4;  // panels of a tile of one row: eight chains hide the latency of a sum
constexpr int64_t kCachedBytes = 256 << 10;  // activations that stay in the second cache beside the weights
constexpr int64_t kTilesThatShare = 12;      // at least, a panel that is converted once: wide ones leave that cache
constexpr int64_t kRowsAtOnce = 512;         // bound on the packed activations
constexpr int64_t kPackedByCaller = 16;      // rows which another thread would be woken for in vain
// Steps of a tile's panels, whole blocks: they stay in the first cache while tiles pass by.
constexpr int64_t kStepsAtOnce = Lanes::kPanelsPerTile > 2 ? 128 : 192;
constexpr int kUnpackedRows = 3;             // where tiles share a panel that is converted once, none has fewer rows
constexpr int64_t kChunkBytes = 96 << 10;    // weights of a chunk: microseconds, so that threads end together

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : least(x, high); }

// How weights of one type are stored and multiplied: `kStep` inputs are taken at once, and a panel's weights of
// `kBlock` such steps lie in one `Weight`. `Unpacked` is what it becomes where many tiles pass by.
struct BfloatPairs {
  using Element = uint16_t;
  struct Weight {
    uint32_t pairs[kPanel];
  };
  using Unpacked = Weight;
  using Activation = Lanes::Activation;
  static constexpr int kStep = 2;
  static constexpr int kBlock = 1;
  static constexpr int kActivations = Lanes::kActivationsPerPair;
  static void keep(Activation* at, int rows, const Element* x, int64_t left) {
    if constexpr (kActivations == 1) {  // as they lie in memory
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
  using Unpacked = Weight;
  using Activation = float;
  static constexpr int kStep = 1;
  static constexpr int kBlock = 1;
  static constexpr int kActivations = 1;
  static void keep(Activation* at, int, const Element* x, int64_t) { at[0] = x[0]; }
  template <int kRows, int kPanels>
  static void add(Lanes (&sums)[kPanels][kRows], const Weight* const (&weights)[kPanels], const Activation* x) {
    for (int p = 0; p < kPanels; ++p) {
      const Lanes weight = Lanes::load(weights[p]->singles);
      for (int row = 0; row < kRows; ++row) sums[p][row] = Lanes::fused(weight, Lanes::all(x[row]), sums[p][row]);
    }
  }
};

constexpr int kScaled = 32;  // inputs of an output that share a scale

struct ScaledBytes {
  uint16_t scales[kPanel];  // float16
  int8_t numbers[kScaled][kPanel];
};

inline Lanes scales_of(const ScaledBytes& block) { return Lanes::load_float16(block.scales); }

// A block of `count` steps has sums of its own, which are scaled and added to those of the output.
template <int kRows, int kPanels, typename W, typename AddStep>
void add_scaled(Lanes (&sums)[kPanels][kRows], const W* const (&weights)[kPanels], int64_t count, const AddStep& add) {
  Lanes block[kPanels][kRows];
  for (auto& panel : block) {
    for (Lanes& sum : panel) sum = Lanes::zero();
  }
  for (int64_t step = 0; step < count; ++step) add(block, step);
  for (int p = 0; p < kPanels; ++p) {
    const Lanes scale = scales_of(*weights[p]);
    for (int row = 0; row < kRows; ++row) sums[p][row] = Lanes::fused(scale, block[p][row], sums[p][row]);
  }
}

template <int kPanels, typename Unpacked>
void keep_scales(const ScaledBytes* const (&weights)[kPanels], Unpacked* const (&kept)[kPanels]) {
  for (int p = 0; p < kPanels; ++p) scales_of(*weights[p]).store(kept[p]->scales);
}

// Of rows of bfloat16: multiplied in pairs, which all int8 are exactly.
struct ScaledPairs {
  using Element = uint16_t;
  using Weight = ScaledBytes;
  static constexpr int kStep = 2;
  static constexpr int kBlock = kScaled / kStep;
  struct alignas(64) Unpacked {
    uint32_t pairs[kBlock][kPanel];
    float scales[kPanel];
  };
  using Activation = BfloatPairs::Activation;
  static constexpr int kActivations = BfloatPairs::kActivations;
  static void keep(Activation* at, int rows, const Element* x, int64_t left) { BfloatPairs::keep(at, rows, x, left); }
  template <bool kKeep, int kRows, int kPanels>
  static void add_and_unpack(Lanes (&sums)[kPanels][kRows], const Weight* const (&weights)[kPanels],
                             const Activation* x, int64_t count, Unpacked* const (&kept)[kPanels]) {
    add_scaled<kRows, kPanels>(sums, weights, count, [&](auto& block, int64_t step) {
      const int8_t* numbers[kPanels];
      uint32_t* pairs[kPanels] = {};
      for (int p = 0; p < kPanels; ++p) {
        numbers[p] = weights[p]->numbers[2 * step];
        if (kKeep) pairs[p] = kept[p]->pairs[step];
      }
      Lanes::add_int8_pairs<kKeep, kRows, kPanels>(block, numbers, x + step * kRows * kActivations, pairs);
    });
    if (kKeep) keep_scales<kPanels>(weights, kept);
  }
  template <int kRows, int kPanels>
  static void add(Lanes (&sums)[kPanels][kRows], const Unpacked* const (&weights)[kPanels], const Activation* x,
                  int64_t count) {
    add_scaled<kRows, kPanels>(sums, weights, count, [&](auto& block, int64_t step) {
      const uint32_t* pairs[kPanels];
      for (int p = 0; p < kPanels; ++p) pairs[p] = weights[p]->pairs[step];
      Lanes::add_pairs<kRows, kPanels>(block, pairs, x + step * kRows * kActivations);
    });
  }
  friend Lanes scales_of(const Unpacked& block) { return Lanes::load(block.scales); }
};

// Of rows of float32.
struct ScaledSingles {
  using Element = float;
  using Weight = ScaledBytes;
  static constexpr int kStep = 1;
  static constexpr int kBlock = kScaled;
  struct alignas(64) Unpacked {
    float numbers[kBlock][kPanel];
    float scales[kPanel];
  };
  using Activation = float;
  static constexpr int kActivations = 1;
  static void keep(Activation* at, int, const Element* x, int64_t) { at[0] = x[0]; }
  template <bool kKeep, int kRows, int kPanels>
  static void add_and_unpack(Lanes (&sums)[kPanels][kRows], const Weight* const (&weights)[kPanels],
                             const Activation* x, int64_t count, Unpacked* const (&kept)[kPanels]) {
    add_scaled<kRows, kPanels>(sums, weights, count, [&](auto& block, int64_t step) {
      for (int p = 0; p < kPanels; ++p) {
        const Lanes weight = Lanes::load_int8(weights[p]->numbers[step]);
        if (kKeep) weight.store(kept[p]->numbers[step]);
        add_step(block[p], weight, x + step * kRows);
      }
    });
    if (kKeep) keep_scales<kPanels>(weights, kept);
  }
  template <int kRows, int kPanels>
  static void add(Lanes (&sums)[kPanels][kRows], const Unpacked* const (&weights)[kPanels], const Activation* x,
                  int64_t count) {
    add_scaled<kRows, kPanels>(sums, weights, count, [&](auto& block, int64_t step) {
      for (int p = 0; p < kPanels; ++p) add_step(block[p], Lanes::load(weights[p]->numbers[step]), x + step * kRows);
    });
  }
  friend Lanes scales_of(const Unpacked& block) { return Lanes::load(block.scales); }

 private:
  template <int kRows>
  static void add_step(Lanes (&sums)[kRows], Lanes weight, const float* x) {
    for (int row = 0; row < kRows; ++row) sums[row] = Lanes::fused(weight, Lanes::all(x[row]), sums[row]);
  }
};

template <typename Format>
class LinearCall {
  using Element = typename Format::Element;
  using Weight = typename Format::Weight;
  using Unpacked = typename Format::Unpacked;
  using Activation = typename Format::Activation;

 public:
  LinearCall(const LinearLayer& layer, const Element* x, int64_t x_stride, int64_t rows, Element* out,
             Activation* packed)
      : layer_(layer),
        x_(x),
        x_stride_(x_stride),
        rows_(rows),
        out_(out),
        packed_(packed),
        steps_((layer.inputs + Format::kStep - 1) / Format::kStep),
        blocks_((steps_ + Format::kBlock - 1) / Format::kBlock),
        panels_((layer.outputs + kPanel - 1) / kPanel),
        tiles_((rows + kMostRows - 1) / kMostRows) {}

  static int64_t packed_size(const LinearLayer& layer, int64_t rows) {
    return rows * ((layer.inputs + Format::kStep - 1) / Format::kStep) * Format::kActivations;
  }

  void run() const {
    const int tiles = static_cast<int>(tiles_);
    if (rows_ <= kPackedByCaller) {
      for (int tile = 0; tile < tiles; ++tile) pack(tile);
    } else {
      for_each_chunk(tiles, [this](int tile) { pack(tile); });
    }
    // Blocks of rows whose activations stay cached while the panels pass by.
    const int64_t row_bytes = steps_ * Format::kActivations * static_cast<int64_t>(sizeof(Activation));
    const int64_t fewest = kAsStored ? 1 : least(kTilesThatShare, tiles_);
    const int64_t tiles_per_block = clamp(kCachedBytes / (row_bytes * kMostRows), fewest, tiles_);
    const int64_t blocks = (tiles_ + tiles_per_block - 1) / tiles_per_block;
    const int64_t panel_bytes = blocks_ * static_cast<int64_t>(sizeof(Weight));
    const int64_t wide = kWidestVector;
    const int64_t panels_per_chunk = (clamp(kChunkBytes / panel_bytes, 1, panels_) + wide - 1) / wide * wide;
    const int64_t groups = (panels_ + panels_per_chunk - 1) / panels_per_chunk;
    for_each_chunk(static_cast<int>(blocks * groups), [&](int chunk) {
      const int64_t block = chunk / groups, group = chunk % groups;
      multiply(group * panels_per_chunk, least((group + 1) * panels_per_chunk, panels_), block * tiles_per_block,
               least((block + 1) * tiles_per_block, tiles_));
    });
  }

 private:
  // Tiles share the rows evenly: six are three and three, not five and one.
  int64_t first_row(int64_t tile) const { return rows_ * tile / tiles_; }

  // Activations of a tile's rows side by side: rows a power of two apart would fall into one set of the cache.
  void pack(int64_t tile) const {
    const int64_t first = first_row(tile), end = first_row(tile + 1);
    const int rows = static_cast<int>(end - first);
    Activation* at = packed_ + first * steps_ * Format::kActivations;
    int row = 0;
    int64_t turned = 0;
    if constexpr (kTurned) {
      turned = layer_.inputs / (4 * Format::kStep) * 4;
      for (; row + 4 <= rows; row += 4) {
        for (int64_t step = 0; step < turned; step += 4) turn(at + step * rows + row, rows, first + row, step);
        for (int each = row; each < row + 4; ++each) keep_row(at + each, rows, first + each, turned);
      }
    }
    for (; row < rows; ++row) keep_row(at + row, rows, first + row, 0);
  }

  void keep_row(Activation* at, int rows, int64_t row, int64_t step) const {
    const Element* x = x_ + row * x_stride_;
    for (; step < steps_; ++step) {
      Format::keep(at + step * rows * Format::kActivations, rows, x + step * Format::kStep,
                   layer_.inputs - step * Format::kStep);
    }
  }

  // Four steps of four rows, where an activation is 32 bits as they lie in memory: 16 bytes at once, not four.
  void turn(Activation* at, int rows, int64_t row, int64_t step) const {
    __m128 part[4];
    for (int i = 0; i < 4; ++i) {
      const Element* x = x_ + (row + i) * x_stride_ + step * Format::kStep;
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
    // Sums wait in memory, unrounded, while the other tiles pass by the same part of a panel.
    const int64_t at_once = end_tile - first_tile > 1 ? kStepsAtOnce : steps_;
    constexpr int64_t kPerTile = kMostRows * kPanel * Lanes::kPanelsPerTile;
    float* sums = kept.get<float>((end_tile - first_tile) * kPerTile);
    Unpacked* unpacked = nullptr;
    if (!kAsStored && end_tile - first_tile >= Lanes::kUnpackedFor) {
      static thread_local Scratch converted;
      unpacked = converted.get<Unpacked>(Lanes::kPanelsPerTile * kUnpackedBlocks);
    }
    while (panel < end) {
      const int64_t most = one_row ? kWidestVector : Lanes::kPanelsPerTile;
      const int64_t count = end - panel >= most ? most : 1;
      for (int64_t step = 0; step == 0 || step < steps_; step += at_once) {
        Part part = {panel, step, least(step + at_once, steps_), unpacked, true};
        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
          const int64_t first = first_row(tile);
          const int rows = static_cast<int>(first_row(tile + 1) - first);
          float* waiting = sums + (tile - first_tile) * kPerTile;
          if (one_row && count == kWidestVector) {
            tile_of<1, kWidestVector>(part, first, waiting);
          } else if (count == 1) {
            any_rows<1>(rows, part, first, waiting);
          } else {
            any_rows<Lanes::kPanelsPerTile>(rows, part, first, waiting);
          }
          part.from_memory = false;
        }
      }
      panel += count;
    }
  }

  // Steps [step, end) of a panel and those after it. The first tile fills `unpacked`, which the others read: a panel's
  // blocks from `step` on, then the next panel's. Null where they are read as they are stored.
  struct Part {
    int64_t panel, step, end;
    Unpacked* unpacked;
    bool from_memory;  // no tile has read them yet
  };

  const Weight* stored(int64_t panel) const { return static_cast<const Weight*>(layer_.packed) + panel * blocks_; }

  template <int kPanels>
  void any_rows(int rows, const Part& part, int64_t first, float* waiting) const {
    switch (rows) {
      case 1: return tile_of<1, kPanels>(part, first, waiting);
      case 2: return tile_of<2, kPanels>(part, first, waiting);
      case 3: return tile_of<3, kPanels>(part, first, waiting);
      case 4: return tile_of<4, kPanels>(part, first, waiting);
      default: return tile_of<kMostRows, kPanels>(part, first, waiting);
    }
  }

  template <int kRows, int kPanels>
  void tile_of(const Part& part, int64_t first, float* waiting) const {
    const Weight* weights[kPanels];
    Unpacked* unpacked[kPanels] = {};
    for (int p = 0; p < kPanels; ++p) {
      weights[p] = stored(part.panel + p) + part.step / Format::kBlock;
      if (part.unpacked != nullptr) unpacked[p] = part.unpacked + p * kUnpackedBlocks;
    }
    if constexpr (kAsStored) {
      add_tile<kRows, kPanels>(weights, part, first, waiting, [](auto& sums, auto& at, const Activation* x, int64_t) {
        Format::template add<kRows, kPanels>(sums, at, x);
      });
    } else if (part.unpacked == nullptr) {
      add_tile<kRows, kPanels>(weights, part, first, waiting, [&](auto& sums, auto& at, auto* x, int64_t count) {
        Format::template add_and_unpack<false, kRows, kPanels>(sums, at, x, count, unpacked);
      });
    } else if constexpr (kRows >= kUnpackedRows) {
      if (part.from_memory) {
        return add_tile<kRows, kPanels>(weights, part, first, waiting, [&](auto& sums, auto& at, auto* x, int64_t n) {
          Format::template add_and_unpack<true, kRows, kPanels>(sums, at, x, n, unpacked);
          for (Unpacked*& each : unpacked) ++each;
        });
      }
      const Unpacked* read[kPanels];
      for (int p = 0; p < kPanels; ++p) read[p] = unpacked[p];
      add_tile<kRows, kPanels>(read, part, first, waiting, [](auto& sums, auto& at, auto* x, int64_t count) {
        Format::template add<kRows, kPanels>(sums, at, x, count);
      });
    }
  }

  template <int kRows, int kPanels, typename W, typename AddBlock>
  void add_tile(const W* const (&panels)[kPanels], const Part& part, int64_t first, float* waiting,
                const AddBlock& add) const {
    Lanes sums[kPanels][kRows];
    for (int p = 0; p < kPanels; ++p) {
      for (int row = 0; row < kRows; ++row) {
        sums[p][row] = part.step == 0 ? Lanes::zero() : Lanes::load(waiting + (p * kRows + row) * kPanel);
      }
    }
    const Activation* x = packed_ + (first * steps_ + part.step * kRows) * Format::kActivations;
    const int64_t blocks = (part.end - part.step + Format::kBlock - 1) / Format::kBlock;
    for (int64_t block = 0; block < blocks; ++block) {
      // One index for all panels: pointers that move become a vector, which takes the units of the products.
      const W* weights[kPanels];
      for (int p = 0; p < kPanels; ++p) weights[p] = panels[p] + block;
      if (Lanes::kReadAhead > 0 && part.from_memory) {
        for (const W* weight : weights) ask_ahead(weight, sizeof(W));
      }
      add(sums, weights, x, least(Format::kBlock, part.end - part.step - block * Format::kBlock));
      x += kRows * Format::kActivations * Format::kBlock;
    }
    if (part.end < steps_) {
      for (int p = 0; p < kPanels; ++p) {
        for (int row = 0; row < kRows; ++row) sums[p][row].store(waiting + (p * kRows + row) * kPanel);
      }
      return;
    }
    for (int p = 0; p < kPanels; ++p) {
      const int64_t output = (part.panel + p) * kPanel;
      const int count = static_cast<int>(least(kPanel, layer_.outputs - output));
      const Element* bias = static_cast<const Element*>(layer_.bias);
      const Lanes added = bias == nullptr ? Lanes::zero() : load_some(bias + output, count);
      for (int row = 0; row < kRows; ++row) {
        const Lanes sum = activated(sums[p][row] + added, layer_.activation);
        store_some(out_ + (first + row) * layer_.outputs + output, count, sum);
      }
    }
  }

  static constexpr bool kTurned =
      Format::kActivations == 1 && sizeof(Activation) == 4 && sizeof(Element) * Format::kStep == 4;
  static constexpr bool kAsStored = std::is_same_v<Unpacked, Weight>;
  static constexpr int64_t kUnpackedBlocks = kStepsAtOnce / Format::kBlock;

  const LinearLayer& layer_;
  const Element* x_;
  int64_t x_stride_;
  int64_t rows_;
  Element* out_;
  Activation* packed_;
  int64_t steps_, blocks_, panels_, tiles_;
};

template <typename Format>
void run_linear(const LinearLayer& layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  using Element = typename Format::Element;
  static thread_local Scratch scratch;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t some = rows - first < kRowsAtOnce ? rows - first : kRowsAtOnce;
    auto* packed = scratch.get<typename Format::Activation>(LinearCall<Format>::packed_size(layer, some));
    LinearCall<Format>(layer, static_cast<const Element*>(x) + first * x_stride, x_stride, some,
                       static_cast<Element*>(out) + first * layer.outputs, packed)
        .run();
  }
}

void linear(const LinearLayer* layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  const bool bfloat = layer->kind == kBfloat16;
  if (layer->packing == kInt8) {
    const auto run = bfloat ? run_linear<ScaledPairs> : run_linear<ScaledSingles>;
    run(*layer, x, x_stride, rows, out);
  } else {
    const auto run = bfloat ? run_linear<BfloatPairs> : run_linear<SingleFloats>;
    run(*layer, x, x_stride, rows, out);
  }
}

}  // namespace
