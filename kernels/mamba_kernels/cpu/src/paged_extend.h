// Attention of the new tokens of prompts over paged keys and values, in one call. Included once by each
// instruction set.
//
// A chunk is some tokens of a piece and one KV head. Its query rows (a token's query heads of that KV head, token
// after token) are lanes, so that keys and values are read in their own layout, and largest scores and sums of the
// softmax need no reduction. The context is processed in blocks of positions that begin at its start, with a running
// softmax: a row's bits depend on its own context alone.
#pragma once
#include "functions.h"
#include "paged_decode.h"
#include "products.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int32_t kBlockPositions = 64;  // keys and scores of a block stay in the first or second cache
constexpr int32_t kQueryRows = 96;       // most rows of a chunk: with so many, converting keys and values costs little
constexpr float kNothing = -3e38f;       // below any score

// Stored: as in paged_decode.h.
template <typename T, typename Stored>
class PagedExtendCall {
 public:
  explicit PagedExtendCall(const PagedExtend& call)
      : call_(call),
        group_(call.heads / call.kv_heads),
        tokens_(group_ < kQueryRows ? kQueryRows / group_ : 1),
        rows_tiled_(tiled(int64_t{tokens_} * group_)),
        dim_tiled_(tiled(call.head_dim)) {}

  void run() const {
    for_each_part([this](int piece, int first, int end, int kv_head) { attend(piece, first, end, kv_head); });
  }

 protected:
  static constexpr bool kScaled = std::is_same_v<Stored, Fp8>;

  // Calls body(piece, first token, end, KV head) for all chunks.
  template <typename Body>
  void for_each_part(const Body& body) const {
    for (int piece = 0; piece < call_.pieces; ++piece) {
      const int count = call_.piece_start[piece + 1] - call_.piece_start[piece];
      const int blocks = (count + tokens_ - 1) / tokens_;
      // Chunks share the tokens evenly. The last ones have the longest contexts and begin first.
      for_each_chunk(blocks * call_.kv_heads, [&](int chunk) {
        const int block = blocks - 1 - chunk / call_.kv_heads;
        body(piece, count * block / blocks, count * (block + 1) / blocks, chunk % call_.kv_heads);
      });
    }
  }

  const Stored* stored(const int32_t* pages, int32_t position, int kv_head, int which) const {
    const int64_t page = pages[position / call_.page_size], offset = position % call_.page_size;
    return static_cast<const Stored*>(call_.kv) + page * call_.page_stride + which * call_.value_offset +
           (offset * call_.kv_heads + kv_head) * call_.head_dim;
  }
  // Returns the factor of a row of FP8.
  Lanes factor(const int32_t* pages, int32_t position, int kv_head, int which) const {
    const int64_t page = pages[position / call_.page_size], offset = position % call_.page_size;
    return Lanes::all(factor_of(call_.scales[page * call_.scale_stride + which * call_.scale_offset +
                                             offset * call_.kv_heads + kv_head]));
  }
  int64_t row_of(int piece, int token) const { return call_.piece_start[piece] - call_.piece_start[0] + token; }

  // Returns the number of positions before a chunk's first token.
  int32_t positions_before(int piece, int first) const {
    return call_.context_len[piece] - (call_.piece_start[piece + 1] - call_.piece_start[piece]) + first;
  }

  // Computes tokens [first, end) of the piece.
  void attend(int piece, int first, int end, int kv_head) const {
    static thread_local Scratch kept;
    const int64_t dim = call_.head_dim, rows = int64_t{end - first} * group_;
    float* query = kept.get<float>((2 * dim + kBlockPositions + 3) * rows_tiled_ + kBlockPositions * dim_tiled_);
    float* sums = query + dim * rows_tiled_;                   // [dim, rows], like query
    float* weights = sums + dim * rows_tiled_;                 // [positions, rows]
    float* most = weights + kBlockPositions * rows_tiled_;     // [rows] largest score so far
    float* total = most + rows_tiled_;                         // [rows] sum of the weights so far
    float* factors = total + rows_tiled_;                      // [rows]
    float* block = factors + rows_tiled_;                      // [positions, dim_tiled_] keys, then values
    take_queries(piece, first, end, kv_head, query);
    for (int64_t i = 0; i < rows_tiled_; ++i) {
      most[i] = kNothing;
      total[i] = 0.0f;
    }
    std::memset(sums, 0, static_cast<size_t>(dim * rows_tiled_) * sizeof(float));
    const int32_t* pages = call_.page_table + call_.table_row[piece] * call_.page_table_stride;
    // The first token sees positions [0, before], and each later token one more.
    const int32_t before = positions_before(piece, first);
    const int32_t context = before + end - first;
    for (int32_t at = 0; at < context; at += kBlockPositions) {
      const int32_t count = context - at < kBlockPositions ? context - at : kBlockPositions;
      widen(pages, at, count, kv_head, 0, block);
      for_each_row_tile(count, [&](auto kRows, int64_t t) {
        for (int64_t i = 0; i < rows; i += kTileColumns) {
          Tile<kRows.value> tile;
          clear<kRows.value>(tile);
          add_products<kRows.value>(tile, block + t * dim_tiled_, dim_tiled_, 1, query + i, rows_tiled_, dim);
          store_tile<kRows.value>(tile, weights + t * rows_tiled_ + i, rows_tiled_);
        }
      });
      for (int32_t t = 0; t < count; ++t) hide(at + t - before, kNothing, rows, weights + t * rows_tiled_);
      for (int64_t i = 0; i < rows; i += kLanes) weigh(count, weights + i, most + i, total + i, factors + i);
      for (int32_t t = 0; t < count; ++t) hide(at + t - before, 0.0f, rows, weights + t * rows_tiled_);
      widen(pages, at, count, kv_head, 1, block);
      for_each_row_tile(dim, [&](auto kRows, int64_t d) {
        for (int64_t i = 0; i < rows; i += kTileColumns) {
          Tile<kRows.value> tile;
          load_tile<kRows.value>(tile, sums + d * rows_tiled_ + i, rows_tiled_);
          scale_columns<kRows.value>(tile, factors + i);
          add_products<kRows.value>(tile, block + d, 1, dim_tiled_, weights + i, rows_tiled_, count);
          store_tile<kRows.value>(tile, sums + d * rows_tiled_ + i, rows_tiled_);
        }
      });
    }
    give(piece, first, kv_head, rows, sums, total);
  }

  // Scales and transposes queries so that rows are lanes, with zeros beyond the last one.
  void take_queries(int piece, int first, int end, int kv_head, float* out) const {
    const int64_t dim = call_.head_dim, rows = int64_t{end - first} * group_;
    for (int64_t i = 0; i < rows_tiled_; ++i) {
      const T* from = static_cast<const T*>(call_.query) +
                      row_of(piece, first + static_cast<int>(i / group_)) * call_.query_stride +
                      (int64_t{kv_head} * group_ + i % group_) * dim;
      for (int64_t d = 0; d < dim; d += kLanes) {
        const int count = static_cast<int>(dim - d < kLanes ? dim - d : kLanes);
        float some[kLanes] = {};
        if (i < rows) (load_some(from + d, count) * Lanes::all(call_.scale)).store(some);
        for (int k = 0; k < count; ++k) out[(d + k) * rows_tiled_ + i] = some[k];
      }
    }
  }

  // Converts keys (which = 0) or values (which = 1) of `count` positions to float32.
  void widen(const int32_t* pages, int32_t first, int32_t count, int kv_head, int which, float* out) const {
    for (int32_t t = 0; t < count; ++t) {
      const Stored* from = stored(pages, first + t, kv_head, which);
      Lanes scale = Lanes::all(1.0f);
      if constexpr (kScaled) scale = factor(pages, first + t, kv_head, which);
      for (int64_t d = 0; d < call_.head_dim; d += kLanes) {
        Lanes row = load_some(from + d, static_cast<int>(call_.head_dim - d));
        if constexpr (kScaled) row = row * scale;
        row.store(out + t * dim_tiled_ + d);
      }
    }
  }

  // Overwrites the entries of rows whose tokens precede a position, which is `ahead` of the first token's.
  void hide(int32_t ahead, float with, int64_t rows, float* at) const {
    const int64_t hidden = int64_t{ahead} * group_;
    for (int64_t i = 0; i < hidden && i < rows; ++i) at[i] = with;
  }

  // Turns scores of sixteen rows into weights of a softmax with a new largest score; `factor` rescales the earlier
  // weights.
  void weigh(int32_t count, float* scores, float* most, float* total, float* factor) const {
    const Lanes before = Lanes::load(most);
    Lanes now = before;
    for (int32_t t = 0; t < count; ++t) now = Lanes::larger(now, Lanes::load(scores + t * rows_tiled_));
    const Lanes scale = exponential(before - now);
    Lanes sum = Lanes::load(total) * scale;
    for (int32_t t = 0; t < count; ++t) {
      const Lanes weight = exponential(Lanes::load(scores + t * rows_tiled_) - now);
      weight.store(scores + t * rows_tiled_);
      sum = sum + weight;
    }
    now.store(most);
    sum.store(total);
    scale.store(factor);
  }

  void give(int piece, int first, int kv_head, int64_t rows, const float* sums, const float* total) const {
    const int64_t dim = call_.head_dim;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = row_of(piece, first + static_cast<int>(i / group_));
      T* out = static_cast<T*>(call_.out) + (row * call_.heads + int64_t{kv_head} * group_ + i % group_) * dim;
      for (int64_t d = 0; d < dim; d += kLanes) {
        const int count = static_cast<int>(dim - d < kLanes ? dim - d : kLanes);
        float some[kLanes] = {};
        for (int k = 0; k < count; ++k) some[k] = sums[(d + k) * rows_tiled_ + i];
        store_some(out + d, count, Lanes::load(some) * Lanes::all(1.0f / total[i]));
      }
    }
  }

  const PagedExtend& call_;
  int group_, tokens_;
  int64_t rows_tiled_, dim_tiled_;
};

template <typename T>
void run_paged_extend(const PagedExtend& call) {
  if (call.scales == nullptr) {
    PagedExtendCall<T, T>(call).run();
  } else {
    PagedExtendCall<T, Fp8>(call).run();
  }
}

void paged_extend(const PagedExtend* call) {
  call->kind == kBfloat16 ? run_paged_extend<uint16_t>(*call) : run_paged_extend<float>(*call);
}

}  // namespace
