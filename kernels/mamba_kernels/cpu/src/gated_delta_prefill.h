// The pieces of prompts through the gated delta rule, in chunks (Yang et al. 2024). Included once by each
// instruction set.
//
// One job is a piece and a head. For some tokens it first computes the products of pairs of keys, and of queries with
// keys; then, for some columns of V at a time, the values that the tokens write (a triangular system, solved from its
// first row to its last), their outputs, and the state after them, all in the first cache. Columns of V are lanes: the
// state is transposed where a piece begins, ends and has a checkpoint, and nothing else is.
#pragma once
#include "channel_piece.h"
#include "delta_rows.h"
#include "products.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kSolvedTogether = 32;  // most tokens: more have more pairs, fewer read the state more often

class DeltaPiece {
 public:
  DeltaPiece(const GatedDeltaPrefill& call, int piece, int head)
      : call_(call),
        tensors_(call.delta),
        piece_(piece),
        head_(head),
        V_(call.delta.value_dim),
        K_(call.delta.key_dim),
        key_row_(odd_lines(K_)),
        pair_row_(odd_lines(tiled(kSolvedTogether))) {
    static thread_local Scratch kept;
    const int64_t panels = tiled(V_) / kTileColumns;
    float* next = kept.get<float>((2 * kSolvedTogether * key_row_) + (K_ + 2 * kSolvedTogether) * pair_row_ +
                                  3 * kSolvedTogether + (panels * K_ + kSolvedTogether) * kTileColumns);
    const auto cut = [&next](int64_t count) {
      float* at = next;
      next += count;
      return at;
    };
    keys_ = cut(kSolvedTogether * key_row_);
    queries_ = cut(kSolvedTogether * key_row_);
    turned_ = cut(K_ * pair_row_);
    against_ = cut(kSolvedTogether * pair_row_);
    weights_ = cut(kSolvedTogether * pair_row_);
    logs_ = cut(kSolvedTogether);
    decays_ = cut(kSolvedTogether);
    betas_ = cut(kSolvedTogether);
    state_ = cut(panels * K_ * kTileColumns);
    written_ = cut(kSolvedTogether * kTileColumns);
  }

  void run() {
    const int64_t source = call_.source[piece_], target = call_.target[piece_];
    const int first = call_.piece_chunk[piece_], end = call_.piece_chunk[piece_ + 1];
    empty_ = source < 0;
    take_state(source);
    for (int chunk = first; chunk < end; ++chunk) {
      const int64_t to = call_.chunk_start[chunk + 1];
      for (int64_t at = call_.chunk_start[chunk]; at < to; at += kSolvedTogether) {
        go_on(at, to - at < kSolvedTogether ? to - at : kSolvedTogether);
      }
      if (call_.chunk_track[chunk] >= 0) keep_state(call_.chunk_track[chunk], call_.chunk_noise[chunk]);
    }
    if (target >= 0) keep_state(target, call_.chunk_noise[end - 1]);
  }

 private:
  // Rows are an odd number of cache lines apart, so that a column of them does not map to a few sets of the cache.
  static int64_t odd_lines(int64_t elements) { return (whole_lanes(elements) / kLanes | 1) * kLanes; }

  void go_on(int64_t row, int64_t count) {
    read(row, count);
    multiply_pairs(count);
    for (int64_t column = 0; column < V_; column += kTileColumns) {
      float* state = state_ + column * K_;
      solve(row, count, column, state);
      move_on(count, state);
    }
    empty_ = false;
  }

  void read(int64_t row, int64_t count) const {
    const int key_head = tensors_.key_head(head_);
    float log = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
      tensors_.key(row + i, key_head, keys_ + i * key_row_);
      tensors_.query(row + i, key_head, queries_ + i * key_row_);
      logs_[i] = log = std::fma(call_.delta.rate[head_], tensors_.step(row + i, head_), log);
      betas_[i] = tensors_.beta(row + i, head_);
    }
    // Numbers after the last token are multiplied, too, but not used.
    for (int64_t i = count; i < whole_lanes(count); ++i) logs_[i] = log;
    for (int64_t i = 0; i < count; i += kLanes) exponential(Lanes::load(logs_ + i)).store(decays_ + i);
    float block[kLanes * kLanes];
    for (int64_t i = 0; i < tiled(count); i += kLanes) {
      for (int64_t k = 0; k < K_; k += kLanes) {
        for (int64_t r = 0; r < kLanes; ++r) {
          (i + r < count ? Lanes::load(keys_ + (i + r) * key_row_ + k) : Lanes::zero()).store(block + r * kLanes);
        }
        turn_block(block, turned_ + k * pair_row_ + i, pair_row_, K_ - k);
      }
    }
  }

  // Computes, for j <= i, weights[i][j] = exp(l_i - l_j) q_i . k_j, against[i][j] = -beta_i exp(l_i - l_j) k_i . k_j.
  void multiply_pairs(int64_t count) const {
    for_each_row_tile(count, [&](auto kRows, int64_t i) {
      for (int64_t j = 0; j < i + kRows.value; j += kTileColumns) {
        Tile<kRows.value> of_keys, of_queries;
        clear<kRows.value>(of_keys);
        clear<kRows.value>(of_queries);
        add_products<kRows.value>(of_keys, keys_ + i * key_row_, key_row_, 1, turned_ + j, pair_row_, K_);
        add_products<kRows.value>(of_queries, queries_ + i * key_row_, key_row_, 1, turned_ + j, pair_row_, K_);
        for (int r = 0; r < kRows.value; ++r) {
          const Lanes log = Lanes::all(logs_[i + r]), minus_beta = Lanes::all(-betas_[i + r]);
          for (int v = 0; v < kTileVectors && j + v * kLanes <= i + r; ++v) {
            const int64_t at = (i + r) * pair_row_ + j + v * kLanes;
            const Lanes apart = exponential(log - Lanes::load(logs_ + j + v * kLanes));
            (of_queries[r][v] * apart).store(weights_ + at);
            (of_keys[r][v] * apart * minus_beta).store(against_ + at);
          }
        }
      }
    });
  }

  // Computes, for kTileColumns columns of V from `column` on, the values that each token writes, and its outputs.
  //   u_i = beta_i (v_i - exp(l_i) S k_i) + sum_{j < i} against[i][j] u_j
  //   o_i = exp(l_i) S q_i + sum_{j <= i} weights[i][j] u_j
  void solve(int64_t row, int64_t count, int64_t column, const float* state) const {
    const int64_t seen = empty_ ? 0 : K_;
    for_each_row_tile(count, [&](auto kRows, int64_t i) {
      constexpr int rows = kRows.value;
      const float* against = against_ + i * pair_row_;
      const float* weights = weights_ + i * pair_row_;
      Tile<rows> u, o;
      clear<rows>(u);
      add_products<rows>(u, keys_ + i * key_row_, key_row_, 1, state, kTileColumns, seen);
      for (int r = 0; r < rows; ++r) {
        const Lanes minus_decay = Lanes::all(-decays_[i + r]), beta = Lanes::all(betas_[i + r]);
        for (int v = 0; v < kTileVectors; ++v) {
          const Lanes wanted = tensors_.v(row + i + r, head_, column + v * kLanes);
          u[r][v] = beta * Lanes::fused(minus_decay, u[r][v], wanted);
        }
      }
      add_products<rows>(u, against, pair_row_, 1, written_, kTileColumns, i);
      for (int r = 1; r < rows; ++r) add_row<rows>(u, r, against + r * pair_row_ + i, u, r);
      store_tile<rows>(u, written_ + i * kTileColumns, kTileColumns);

      clear<rows>(o);
      add_products<rows>(o, queries_ + i * key_row_, key_row_, 1, state, kTileColumns, seen);
      for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < kTileVectors; ++v) o[r][v] = o[r][v] * Lanes::all(decays_[i + r]);
      }
      add_products<rows>(o, weights, pair_row_, 1, written_, kTileColumns, i);
      for (int r = 0; r < rows; ++r) {
        add_row<rows>(o, r, weights + r * pair_row_ + i, u, r + 1);
        for (int v = 0; v < kTileVectors; ++v) {
          tensors_.put_out(row + i + r, head_, column + v * kLanes, o[r][v]);
        }
      }
    });
  }

  // Adds sum_{s < count} factors[s] rows[s] to row `r` of `tile`. A product of tiles would include the numbers of later
  // tokens, which may be NaN.
  template <int kRows>
  static void add_row(Tile<kRows>& tile, int r, const float* factors, const Tile<kRows>& rows, int count) {
    for (int s = 0; s < count; ++s) {
      for (int v = 0; v < kTileVectors; ++v) {
        tile[r][v] = Lanes::fused(Lanes::all(factors[s]), rows[s][v], tile[r][v]);
      }
    }
  }

  // Computes S = exp(l_end) S + sum_j exp(l_end - l_j) u_j k_j^T for the columns that were solved for.
  void move_on(int64_t count, float* state) const {
    const Lanes last = Lanes::all(logs_[count - 1]);
    for (int64_t j = 0; j < count; j += kLanes) {
      float left[kLanes];
      exponential(last - Lanes::load(logs_ + j)).store(left);
      for (int64_t i = j; i < j + kLanes && i < count; ++i) {
        for (int v = 0; v < kTileVectors; ++v) {
          float* at = written_ + i * kTileColumns + v * kLanes;
          (Lanes::load(at) * Lanes::all(left[i - j])).store(at);
        }
      }
    }
    const Lanes decay = Lanes::all(decays_[count - 1]);
    for_each_row_tile(K_, [&](auto kRows, int64_t k) {
      Tile<kRows.value> tile;
      load_tile<kRows.value>(tile, state + k * kTileColumns, kTileColumns);
      for (auto& row : tile) {
        for (Lanes& part : row) part = part * decay;
      }
      add_products<kRows.value>(tile, keys_ + k, 1, key_row_, written_, kTileColumns, count);
      store_tile<kRows.value>(tile, state + k * kTileColumns, kTileColumns);
    });
  }

  // Returns sixteen columns of V from `v` on, at the first column of K; the next one of K is kTileColumns further on.
  float* columns_of(int64_t v) const { return state_ + v / kTileColumns * kTileColumns * K_ + v % kTileColumns; }

  void take_state(int64_t slot) const {
    float block[kLanes * kLanes];
    for (int64_t v = 0; v < tiled(V_); v += kLanes) {
      for (int64_t k = 0; k < K_; k += kLanes) {
        for (int64_t r = 0; r < kLanes; ++r) {
          const bool none = slot < 0 || v + r >= V_;
          (none ? Lanes::zero() : tensors_.state(slot, head_, v + r, k)).store(block + r * kLanes);
        }
        turn_block(block, columns_of(v) + k * kTileColumns, kTileColumns, K_ - k);
      }
    }
  }

  void keep_state(int64_t slot, uint32_t noise) const {
    float block[kLanes * kLanes], turned[kLanes * kLanes];
    for (int64_t v = 0; v < V_; v += kLanes) {
      for (int64_t k = 0; k < K_; k += kLanes) {
        for (int64_t n = 0; n < kLanes; ++n) {
          const float* from = columns_of(v) + (k + n) * kTileColumns;
          (k + n < K_ ? Lanes::load(from) : Lanes::zero()).store(block + n * kLanes);
        }
        turn_block(block, turned, kLanes, kLanes);
        for (int64_t r = 0; r < kLanes && v + r < V_; ++r) {
          tensors_.put_state(slot, head_, v + r, k, Lanes::load(turned + r * kLanes), noise);
        }
      }
    }
  }

  const GatedDeltaPrefill& call_;
  DeltaTensors tensors_;
  int piece_, head_;
  int64_t V_, K_;
  int64_t key_row_, pair_row_;  // distance of rows of keys and of pairs
  bool empty_ = false;          // whether the state is still zero
  float* keys_;      // [tokens, key_row_]
  float* queries_;   // [tokens, key_row_]
  float* turned_;    // [K, pair_row_] transposed keys, with tokens in lanes
  float* against_;   // [tokens, pair_row_]
  float* weights_;   // [tokens, pair_row_]
  float* logs_;      // [tokens] logarithms of the decay since the first of them
  float* decays_;    // [tokens]
  float* betas_;     // [tokens]
  float* state_;     // [columns of V / kTileColumns, K, kTileColumns]
  float* written_;   // [tokens, kTileColumns] written values of the current columns
};

void gated_delta_prefill(const GatedDeltaPrefill* call) {
  const int heads = call->delta.heads;
  if (call->delta.decays > 1) {
    for_each_chunk(call->pieces * heads, [&](int job) { ChannelPiece(*call, job / heads, job % heads).run(); });
    return;
  }
  for_each_chunk(call->pieces * heads, [&](int job) { DeltaPiece(*call, job / heads, job % heads).run(); });
}

}  // namespace
