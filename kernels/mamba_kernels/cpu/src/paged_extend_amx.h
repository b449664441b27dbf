// Attention of the new tokens of prompts by the matrix unit (AMX), for bfloat16. Included after Lanes and linear_amx.h.
//
// Parts, blocks of positions, masks and the softmax are those of paged_extend.h; the two products of a block go
// through the unit. Tiles of keys are rows in their stored layout. Queries and weights are the operand in pairs, so
// that a row of a token is a lane of the sums, as it is without the unit. Weights are rounded to bfloat16; their sum is
// not. A position that a row does not see has weight zero, and adds exactly nothing.
#pragma once
#include "linear_amx.h"
#include "paged_extend.h"

namespace {

// Transposes: lane j of x[i] becomes lane i of x[j].
inline void transpose_lanes(__m512i (&x)[kLanes]) {
  __m512i y[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  // Quarter l of x[4 g + c] holds column 4 l + c of rows 4 g to 4 g + 3.
  constexpr int kEven = 0x88, kOdd = 0xdd;
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(x[c], x[4 + c], kEven);
    const __m512i high = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], kEven);
    const __m512i odd_low = _mm512_shuffle_i32x4(x[c], x[4 + c], kOdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], kOdd);
    y[c] = _mm512_shuffle_i32x4(low, high, kEven);
    y[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, kEven);
    y[8 + c] = _mm512_shuffle_i32x4(low, high, kOdd);
    y[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, kOdd);
  }
  for (int i = 0; i < kLanes; ++i) x[i] = y[i];
}

// Reads sixteen bfloat16, one per lane; those after the first `count` are zero.
inline __m512i widened_bits(const uint16_t* at, int64_t count) {
  uint16_t some[kLanes] = {};
  if (count < kLanes) {
    if (count > 0) std::memcpy(some, at, static_cast<size_t>(count) * sizeof(uint16_t));
    at = some;
  }
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

inline __m512i pairs_of(__m512i even, __m512i odd) { return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)); }

template <typename Stored>
class TileExtendCall : public PagedExtendCall<uint16_t, Stored> {
  using Base = PagedExtendCall<uint16_t, Stored>;
  using Base::call_, Base::factor, Base::for_each_part, Base::give, Base::group_, Base::hide, Base::kScaled,
      Base::positions_before, Base::row_of, Base::rows_tiled_, Base::stored, Base::weigh;

 public:
  explicit TileExtendCall(const PagedExtend& call)
      : Base(call), deep_((call.head_dim + kTileInputs - 1) / kTileInputs * kTileInputs) {}

  void run() const {
    for_each_part([this](int piece, int first, int end, int kv_head) { attend(piece, first, end, kv_head); });
  }

 private:
  static constexpr int64_t kBlockPairs = kBlockPositions / 2;

  void attend(int piece, int first, int end, int kv_head) const {
    static thread_local Scratch kept;
    const int64_t rows = int64_t{end - first} * group_, across = rows_tiled_;
    // Words of 32 bits: two bfloat16, or a float32.
    uint32_t* queries = kept.get<uint32_t>(across * (deep_ / 2 + kBlockPairs + kBlockPositions + deep_ + 3) +
                                           2 * kBlockPairs * deep_);
    uint32_t* pairs = queries + across * (deep_ / 2);                   // [pairs of positions, rows] weights
    float* scores = reinterpret_cast<float*>(pairs + across * kBlockPairs);  // [positions, rows]
    float* sums = scores + across * kBlockPositions;                    // [deep, rows]
    float* most = sums + across * deep_;                                // [rows] as in paged_extend.h
    float* total = most + across;
    float* factors = total + across;
    uint16_t* keys = reinterpret_cast<uint16_t*>(factors + across);     // [positions, deep]
    uint16_t* values = keys + kBlockPositions * deep_;                  // [deep, positions]
    take_query_pairs(piece, first, kv_head, rows, queries);
    for (int64_t i = 0; i < across; ++i) {
      most[i] = kNothing;
      total[i] = 0.0f;
    }
    std::memset(sums, 0, static_cast<size_t>(deep_ * across) * sizeof(float));
    const int32_t* pages = call_.page_table + call_.table_row[piece] * call_.page_table_stride;
    const int32_t before = positions_before(piece, first), context = before + end - first;
    const TileShapes shapes(kSide);
    memory_is_read();
    _tile_loadconfig(&shapes);
    for (int32_t at = 0; at < context; at += kBlockPositions) {
      const int32_t count = context - at < kBlockPositions ? context - at : kBlockPositions;
      take_keys(pages, at, count, kv_head, keys);
      score(queries, keys, rows, scores);
      for (int32_t t = 0; t < count; ++t) {
        float* row = scores + t * across;
        for (int64_t i = 0; i < rows; i += kLanes) (Lanes::load(row + i) * Lanes::all(call_.scale)).store(row + i);
        hide(at + t - before, kNothing, rows, row);
      }
      for (int64_t i = 0; i < rows; i += kLanes) weigh(count, scores + i, most + i, total + i, factors + i);
      for (int32_t t = 0; t < count; ++t) hide(at + t - before, 0.0f, rows, scores + t * across);
      take_weights(scores, count, rows, pairs);
      take_values(pages, at, count, kv_head, values);
      add_values(values, pairs, factors, rows, sums);
    }
    _tile_release();
    give(piece, first, kv_head, rows, sums, total);
  }

  // Writes pairs of a query's numbers, with rows in lanes: [deep / 2, rows], with zeros beyond both.
  void take_query_pairs(int piece, int first, int kv_head, int64_t rows, uint32_t* out) const {
    for (int64_t i = 0; i < rows_tiled_; i += kLanes) {
      for (int64_t d = 0; d < deep_; d += kTileInputs) {
        __m512i lanes[kLanes];
        for (int r = 0; r < kLanes; ++r) {
          alignas(64) uint16_t some[kTileInputs] = {};
          if (i + r < rows) {
            const int64_t row = row_of(piece, first + static_cast<int>((i + r) / group_));
            const uint16_t* from = static_cast<const uint16_t*>(call_.query) + row * call_.query_stride +
                                   (int64_t{kv_head} * group_ + (i + r) % group_) * call_.head_dim;
            std::memcpy(some, from + d, static_cast<size_t>(least(call_.head_dim - d, kTileInputs)) * sizeof *some);
          }
          lanes[r] = _mm512_load_si512(some);
        }
        transpose_lanes(lanes);
        for (int k = 0; k < kLanes; ++k) _mm512_storeu_si512(out + (d / 2 + k) * rows_tiled_ + i, lanes[k]);
      }
    }
  }

  // Copies keys to [positions, deep], with zeros beyond `count` and beyond the head.
  void take_keys(const int32_t* pages, int32_t first, int32_t count, int kv_head, uint16_t* out) const {
    const size_t bytes = static_cast<size_t>(call_.head_dim) * sizeof(uint16_t);
    const size_t all = static_cast<size_t>(deep_) * sizeof(uint16_t);
    for (int32_t t = 0; t < kBlockPositions; ++t, out += deep_) {
      if (t < count) {
        if constexpr (kScaled) {
          const Fp8* key = stored(pages, first + t, kv_head, 0);
          const Lanes scale = factor(pages, first + t, kv_head, 0);
          for_each_vector(0, call_.head_dim, [&](auto kWhole, int64_t d, int some) {
            store_part<kWhole>(out + d, some, load_part<kWhole>(key + d, some) * scale);
          });
        } else {
          std::memcpy(out, stored(pages, first + t, kv_head, 0), bytes);
        }
        if (all > bytes) std::memset(out + call_.head_dim, 0, all - bytes);
      } else {
        std::memset(out, 0, all);
      }
    }
  }

  // Transposes values to [deep, positions], with zeros as for keys.
  void take_values(const int32_t* pages, int32_t first, int32_t count, int kv_head, uint16_t* out) const {
    for (int32_t t = 0; t < kBlockPositions; t += 2 * kLanes) {
      for (int64_t d = 0; d < deep_; d += kLanes) {
        const auto at = [&](int32_t position) {
          const int64_t there = position < count ? call_.head_dim - d : 0;
          if (there <= 0) return _mm512_setzero_si512();
          const Stored* value = stored(pages, first + position, kv_head, 1) + d;
          if constexpr (kScaled) {
            // A number of FP8 times a power of two is a bfloat16.
            const Lanes wide = load_some(value, static_cast<int>(there)) * factor(pages, first + position, kv_head, 1);
            return _mm512_srli_epi32(_mm512_castps_si512(wide.x), 16);
          } else {
            return widened_bits(value, there);
          }
        };
        __m512i lanes[kLanes];
        for (int pair = 0; pair < kLanes; ++pair) lanes[pair] = pairs_of(at(t + 2 * pair), at(t + 2 * pair + 1));
        transpose_lanes(lanes);
        for (int k = 0; k < kLanes; ++k) _mm512_storeu_si512(out + (d + k) * kBlockPositions + t, lanes[k]);
      }
    }
  }

  // Rounds weights of positions and stores them in pairs, with zeros beyond `count`.
  void take_weights(const float* weights, int32_t count, int64_t rows, uint32_t* out) const {
    for (int32_t t = 0; t < kBlockPositions; t += 2, out += rows_tiled_) {
      for (int64_t i = 0; i < rows; i += kLanes) {
        const auto at = [&](int32_t position) {
          if (position >= count) return _mm512_setzero_si512();
          uint16_t some[kLanes];
          Lanes::load(weights + position * rows_tiled_ + i).store_bfloat16(some);
          return widened_bits(some, kLanes);
        };
        _mm512_storeu_si512(out + i, pairs_of(at(t), at(t + 1)));
      }
    }
  }

  // Computes the scores of all positions of a block and all rows: [positions, rows].
  void score(const uint32_t* queries, const uint16_t* keys, int64_t rows, float* scores) const {
    const int64_t across = rows_tiled_, key_bytes = deep_ * 2, row_bytes = across * 4;
    memory_is_read();
    for (int64_t t = 0; t < kBlockPositions; t += 2 * kSide) {
      for (int64_t i = 0; i < rows; i += 2 * kSide) {
        clear_sums();
        for (int64_t d = 0; d < deep_; d += kTileInputs) {
          add_tiles(keys + t * deep_ + d, keys + (t + kSide) * deep_ + d, key_bytes,
                    queries + d / 2 * across + i, row_bytes);
        }
        float* at = scores + t * across + i;
        _tile_stored(0, at, row_bytes);
        _tile_stored(1, at + kSide, row_bytes);
        _tile_stored(2, at + kSide * across, row_bytes);
        _tile_stored(3, at + kSide * across + kSide, row_bytes);
      }
    }
  }

  // Computes sums = sums * factors + the contribution of the block: [deep, rows].
  void add_values(const uint16_t* values, const uint32_t* pairs, const float* factors, int64_t rows,
                  float* sums) const {
    const int64_t across = rows_tiled_, row_bytes = across * 4;
    for (int64_t d = 0; d < deep_; ++d) {
      float* row = sums + d * across;
      for (int64_t i = 0; i < rows; i += kLanes) (Lanes::load(row + i) * Lanes::load(factors + i)).store(row + i);
    }
    memory_is_read();
    for (int64_t d = 0; d < deep_; d += 2 * kSide) {
      for (int64_t i = 0; i < rows; i += 2 * kSide) {
        float* at = sums + d * across + i;
        _tile_loadd(0, at, row_bytes);
        _tile_loadd(1, at + kSide, row_bytes);
        _tile_loadd(2, at + kSide * across, row_bytes);
        _tile_loadd(3, at + kSide * across + kSide, row_bytes);
        for (int64_t t = 0; t < kBlockPositions; t += kTileInputs) {
          add_tiles(values + d * kBlockPositions + t, values + (d + kSide) * kBlockPositions + t,
                    2 * kBlockPositions, pairs + t / 2 * across + i, row_bytes);
        }
        _tile_stored(0, at, row_bytes);
        _tile_stored(1, at + kSide, row_bytes);
        _tile_stored(2, at + kSide * across, row_bytes);
        _tile_stored(3, at + kSide * across + kSide, row_bytes);
      }
    }
  }

  // Adds to the four tiles of sums: two of rows by two of pairs.
  static void add_tiles(const uint16_t* upper, const uint16_t* lower, int64_t pitch, const uint32_t* pairs,
                        int64_t pairs_pitch) {
    _tile_loadd(4, upper, pitch);
    _tile_loadd(6, pairs, pairs_pitch);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, pairs + kSide, pairs_pitch);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower, pitch);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }

  int64_t deep_;  // size of a head, rounded up to whole tiles
};

void paged_extend_amx(const PagedExtend* call) {
  if (call->kind != kBfloat16) return paged_extend(call);
  if (call->scales == nullptr) {
    TileExtendCall<uint16_t>(*call).run();
  } else {
    TileExtendCall<Fp8>(*call).run();
  }
}

}  // namespace
