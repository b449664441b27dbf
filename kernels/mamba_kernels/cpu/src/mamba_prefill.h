// The pieces of prompts in a Mamba2 mixer between its two projections: convolution windows, step sizes, chunked
// scan (Dao and Gu 2024, section 6), gate and norm, in one call. Included once by each instruction set.
//
// A piece is processed in blocks of some chunks; within a block the work is divided by rows (convolution, norm), by
// chunks and groups (products of B and C) and by heads, which carry their state from chunk to chunk in the
// cache. No sum is divided, and a chunk's sums do not depend on its block or its piece.
#pragma once
#include "convolution.h"
#include "norms.h"
#include "piece_inputs.h"
#include "products.h"
#include "scratch.h"

namespace {

constexpr int kChunksAtOnce = 4;     // chunks of a block; bounds the memory between the passes
constexpr int kRowsOfAPass = 8;      // rows of a job in a convolution or norm: tens of microseconds

template <typename T, typename State>
class MambaPrefillCall {
 public:
  explicit MambaPrefillCall(const MambaPrefill& call)
      : call_(call),
        mixer_(*call.mixer),
        inner_(int64_t{mixer_.heads} * mixer_.head_dim),
        shared_(int64_t{mixer_.groups} * mixer_.state_size),
        channels_(inner_ + 2 * shared_),
        convolution_(convolution_of<T>(call, mixer_.conv_bias, channels_)),
        width_(widest(call)),
        width_tiled_(tiled(width_)),
        state_tiled_(tiled(mixer_.state_size)) {
    static thread_local Scratch kept[6];
    const int64_t rows = width_ * kChunksAtOnce, parts = int64_t{kChunksAtOnce} * mixer_.groups;
    mixed_ = kept[0].get<T>(rows * channels_);
    y_ = kept[1].get<float>(rows * inner_);
    wide_B_ = kept[2].get<float>(parts * width_ * state_tiled_);
    turned_C_ = kept[3].get<float>(parts * mixer_.state_size * width_tiled_);
    pairs_ = kept[4].get<float>(parts * width_ * width_tiled_);
    carried_ = kept[5].get<float>(inner_ * state_tiled_);
  }

  void run() const {
    for (int piece = 0; piece < call_.pieces; ++piece) {
      const int first = call_.piece_chunk[piece], end = call_.piece_chunk[piece + 1];
      for (int block = first; block < end; block += kChunksAtOnce) {
        run_block(piece, block, block + kChunksAtOnce < end ? block + kChunksAtOnce : end);
      }
      PieceInputs<T>(call_, convolution_, projected(0) + inner_, piece).keep_windows();
    }
  }

 private:
  static int64_t widest(const MambaPrefill& call) {
    int64_t most = 0;
    for (int chunk = 0; chunk < call.piece_chunk[call.pieces]; ++chunk) {
      const int64_t length = call.chunk_start[chunk + 1] - call.chunk_start[chunk];
      most = length > most ? length : most;
    }
    return most;
  }

  const T* projected(int64_t row) const {
    return static_cast<const T*>(call_.projected) + row * call_.projected_stride;
  }
  State* state(int64_t slot, int head) const {
    return static_cast<State*>(call_.state) + slot * call_.state_stride +
           int64_t{head} * mixer_.head_dim * mixer_.state_size;
  }
  int64_t length(int chunk) const { return call_.chunk_start[chunk + 1] - call_.chunk_start[chunk]; }

  void run_block(int piece, int first, int end) const {
    const int64_t row = call_.chunk_start[first], rows = call_.chunk_start[end] - row;
    const int passes = static_cast<int>((rows + kRowsOfAPass - 1) / kRowsOfAPass);
    const auto rows_of = [&](int pass, const auto& body) {
      const int64_t last = (pass + 1) * kRowsOfAPass < rows ? (pass + 1) * kRowsOfAPass : rows;
      body(pass * int64_t{kRowsOfAPass}, last);
    };
    const PieceInputs<T> inputs(call_, convolution_, projected(0) + inner_, piece);
    for_each_chunk(passes, [&](int pass) {
      rows_of(pass, [&](int64_t from, int64_t to) {
        inputs.convolve(row + from, row + to, mixed_ + from * channels_);
      });
    });
    for_each_chunk((end - first) * mixer_.groups, [&](int part) {
      multiply_shared(first + part / mixer_.groups, part / mixer_.groups, part % mixer_.groups);
    });
    for_each_chunk(mixer_.heads, [&](int head) {
      for (int chunk = first; chunk < end; ++chunk) scan(piece, chunk, chunk - first, head);
    });
    for_each_chunk(passes, [&](int pass) {
      rows_of(pass, [&](int64_t from, int64_t to) {
        for (int64_t at = from; at < to; ++at) {
          gated_norm_row(y_ + at * inner_, projected(row + at), static_cast<const T*>(mixer_.norm_weight),
                         static_cast<T*>(call_.out) + (row + at) * inner_, inner_, mixer_.norm_groups,
                         mixer_.norm_eps);
        }
      });
    });
  }

  // Computes, for a chunk and a group, B as float32, C with positions in lanes, and pairs[j][i] = C_i . B_j for i >= j.
  void multiply_shared(int chunk, int place, int group) const {
    const int64_t part = int64_t{place} * mixer_.groups + group, Q = length(chunk), N = mixer_.state_size;
    const int64_t row = call_.chunk_start[chunk] - call_.chunk_start[chunk - place];
    float* B = wide_B_ + part * width_ * state_tiled_;
    float* C = turned_C_ + part * N * width_tiled_;
    float* pairs = pairs_ + part * width_ * width_tiled_;
    for (int64_t j = 0; j < Q; ++j) {
      const T* from = mixed_ + (row + j) * channels_ + inner_ + group * N;
      for (int64_t n = 0; n < state_tiled_; n += kLanes) widen(from, n, N, B + j * state_tiled_);
    }
    for (int64_t n = 0; n < N; n += kLanes) {
      const int count = static_cast<int>(N - n < kLanes ? N - n : kLanes);
      for (int64_t i = 0; i < width_tiled_; ++i) {
        float some[kLanes] = {};
        if (i < Q) load_some(mixed_ + (row + i) * channels_ + inner_ + shared_ + group * N + n, count).store(some);
        for (int k = 0; k < count; ++k) C[(n + k) * width_tiled_ + i] = some[k];
      }
    }
    for_each_row_tile(Q, [&](auto kRows, int64_t j) {
      for (int64_t i = j / kTileColumns * kTileColumns; i < Q; i += kTileColumns) {
        Tile<kRows.value> tile;
        clear<kRows.value>(tile);
        add_products<kRows.value>(tile, B + j * state_tiled_, state_tiled_, 1, C + i, width_tiled_, N);
        store_tile<kRows.value>(tile, pairs + j * width_tiled_ + i, width_tiled_);
      }
    });
  }

  // Converts sixteen elements from `at` on of a row of `size` elements, with zeros beyond its end.
  static void widen(const T* row, int64_t at, int64_t size, float* out) {
    (at < size ? load_some(row + at, static_cast<int>(size - at)) : Lanes::zero()).store(out + at);
  }

  // Computes the outputs of one chunk of one head, and advances the state to its end.
  void scan(int piece, int chunk, int place, int head) const {
    static thread_local Scratch kept;
    const int64_t Q = length(chunk), P = mixer_.head_dim, N = mixer_.state_size;
    const int64_t row = call_.chunk_start[chunk] - call_.chunk_start[chunk - place];
    const int64_t part = int64_t{place} * mixer_.groups + head / (mixer_.heads / mixer_.groups);
    const float* C = turned_C_ + part * N * width_tiled_;
    const int64_t P_wide = (P + kLanes - 1) / kLanes * kLanes;
    float* x = kept.get<float>(Q * P_wide + (Q + P + 5) * width_tiled_);  // [Q, P_wide]
    float* weights = x + Q * P_wide;                                      // [Q, width_tiled_]
    float* y = weights + Q * width_tiled_;                                // [P, width_tiled_]
    float* steps = y + P * width_tiled_;
    float* logs = steps + width_tiled_;  // logarithms of the decay since the chunk's start
    float* decays = logs + width_tiled_;
    float* h = carried_ + head * P * state_tiled_;
    const bool first = chunk == call_.piece_chunk[piece];
    const int64_t source = call_.source[piece];
    if (first) take_state(source, head, h);

    for (int64_t j = 0; j < Q; ++j) {
      for (int64_t p = 0; p < P; p += kLanes) {
        widen(mixed_ + (row + j) * channels_ + head * P, p, P, x + j * P_wide);
      }
    }
    float log = 0.0f;
    for (int64_t j = 0; j < width_tiled_; ++j) {
      steps[j] = j < Q ? step_size(call_.chunk_start[chunk] + j, head) : 0.0f;
      logs[j] = log += steps[j] * mixer_.rate[head];
    }
    for (int64_t i = 0; i < width_tiled_; i += kLanes) exponential(Lanes::load(logs + i)).store(decays + i);
    weigh_pairs(pairs_ + part * width_ * width_tiled_, steps, logs, mixer_.skip[head], Q, weights);

    // y_i = exp(l_i) C_i h + sum_{j <= i} exp(l_i - l_j) (C_i . B_j) dt_j x_j + D x_i
    const bool empty = first && source < 0;
    for_each_row_tile(P, [&](auto kRows, int64_t p) {
      for (int64_t i = 0; i < Q; i += kTileColumns) {
        Tile<kRows.value> tile;
        clear<kRows.value>(tile);
        if (!empty) {
          add_products<kRows.value>(tile, h + p * state_tiled_, state_tiled_, 1, C + i, width_tiled_, N);
          scale_columns<kRows.value>(tile, decays + i);
        }
        const int64_t seen = i + kTileColumns < Q ? i + kTileColumns : Q;
        add_products<kRows.value>(tile, x + p, 1, P_wide, weights + i, width_tiled_, seen);
        store_tile<kRows.value>(tile, y + p * width_tiled_ + i, width_tiled_);
      }
    });
    transpose(y, width_tiled_, P, Q, y_ + row * inner_ + head * P, inner_);

    // h = exp(l_end) h + sum_j exp(l_end - l_j) dt_j x_j B_j
    for (int64_t j = 0; j < Q; j += kLanes) {
      float factors[kLanes];
      (exponential(Lanes::all(log) - Lanes::load(logs + j)) * Lanes::load(steps + j)).store(factors);
      for (int64_t k = j; k < j + kLanes && k < Q; ++k) {
        const Lanes factor = Lanes::all(factors[k - j]);
        for (int64_t p = 0; p < P; p += kLanes) {
          float* at = x + k * P_wide + p;
          (Lanes::load(at) * factor).store(at);
        }
      }
    }
    float whole[kLanes];
    exponential(Lanes::all(log)).store(whole);
    float wholes[kTileColumns];
    for (float& each : wholes) each = whole[0];
    const float* B = wide_B_ + part * width_ * state_tiled_;
    for_each_row_tile(P, [&](auto kRows, int64_t p) {
      for (int64_t n = 0; n < N; n += kTileColumns) {
        Tile<kRows.value> tile;
        load_tile<kRows.value>(tile, h + p * state_tiled_ + n, state_tiled_);
        scale_columns<kRows.value>(tile, wholes);
        add_products<kRows.value>(tile, x + p, 1, P_wide, B + n, state_tiled_, Q);
        store_tile<kRows.value>(tile, h + p * state_tiled_ + n, state_tiled_);
      }
    });
    const uint32_t noise = call_.chunk_noise[chunk];
    if (call_.chunk_track[chunk] >= 0) keep_state(h, call_.chunk_track[chunk], head, noise);
    if (chunk + 1 == call_.piece_chunk[piece + 1]) keep_state(h, call_.target[piece], head, noise);
  }

  float step_size(int64_t row, int head) const {
    T raw = projected(row)[inner_ + channels_ + head];
    const float step = softplus(load_some(&raw, 1).sum() + mixer_.step_bias[head]);
    return step < mixer_.step_min ? mixer_.step_min : step > mixer_.step_max ? mixer_.step_max : step;
  }

  // Computes weights[j][i] = exp(l_i - l_j) dt_j pairs[j][i], zero for i < j, plus the skip on the diagonal.
  void weigh_pairs(const float* pairs, const float* steps, const float* logs, float skip, int64_t Q,
                   float* weights) const {
    for (int64_t j = 0; j < Q; ++j) {
      float* out = weights + j * width_tiled_;
      const Lanes log = Lanes::all(logs[j]), step = Lanes::all(steps[j]);
      const int64_t first = j / kTileColumns * kTileColumns;
      for (int64_t i = first; i < Q; i += kLanes) {
        const Lanes pair = Lanes::load(pairs + j * width_tiled_ + i);
        (exponential(Lanes::load(logs + i) - log) * step * pair).store(out + i);
      }
      for (int64_t i = first; i < j; ++i) out[i] = 0.0f;
      out[j] += skip;
    }
  }

  void take_state(int64_t slot, int head, float* h) const {
    const int64_t N = mixer_.state_size;
    for (int64_t p = 0; p < mixer_.head_dim; ++p) {
      for (int64_t n = 0; n < state_tiled_; n += kLanes) {
        const bool none = slot < 0 || n >= N;
        const Lanes part = none ? Lanes::zero() : load_some(state(slot, head) + p * N + n, static_cast<int>(N - n));
        part.store(h + p * state_tiled_ + n);
      }
    }
  }

  void keep_state(const float* h, int64_t slot, int head, uint32_t noise) const {
    const int64_t N = mixer_.state_size;
    const int64_t first = head * mixer_.head_dim * N;
    for (int64_t p = 0; p < mixer_.head_dim; ++p) {
      for (int64_t n = 0; n < N; n += kLanes) {
        const Lanes part = Lanes::load(h + p * state_tiled_ + n);
        store_some(state(slot, head) + p * N + n, static_cast<int>(N - n),
                   as_stored<State>(part, static_cast<uint32_t>(first + p * N + n), noise));
      }
    }
  }

  const MambaPrefill& call_;
  const Mixer& mixer_;
  int64_t inner_, shared_, channels_;
  Convolution<T> convolution_;
  int64_t width_, width_tiled_, state_tiled_;  // length of the longest chunk; it and state_size rounded up to tiles
  T* mixed_;         // [rows of a block, channels] x | B | C after the convolution
  float* y_;         // [rows of a block, inner]
  float* wide_B_;    // [chunks of a block, groups, width_, state_tiled_]
  float* turned_C_;  // [chunks of a block, groups, state_size, width_tiled_]
  float* pairs_;     // [chunks of a block, groups, width_, width_tiled_]
  float* carried_;   // [heads, head_dim, state_tiled_] states at the start of the next chunk
};

void mamba_prefill(const MambaPrefill* call) {
  if (call->pieces == 0) return;
  const bool half = call->state_kind == kFloat16;
  if (call->kind == kBfloat16) {
    half ? MambaPrefillCall<uint16_t, Half>(*call).run() : MambaPrefillCall<uint16_t, float>(*call).run();
  } else {
    half ? MambaPrefillCall<float, Half>(*call).run() : MambaPrefillCall<float, float>(*call).run();
  }
}

}  // namespace
