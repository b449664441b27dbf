// A piece of a prompt and a head of the delta rule with a decay for each channel of a key (Kimi delta attention).
// Included once by each instruction set.
//
// Tokens are computed one after another, and the state stays in the second cache. A chunk is not computed by
// products of tiles, since a pair of tokens has a decay for each channel, and the factors of such products
// would overflow.
#pragma once
#include "delta_rows.h"
#include "scratch.h"

namespace {

class ChannelPiece {
 public:
  ChannelPiece(const GatedDeltaPrefill& call, int piece, int head)
      : call_(call), tensors_(call.delta), piece_(piece), head_(head), V_(call.delta.value_dim), K_(call.delta.key_dim),
        row_(whole_lanes(call.delta.key_dim)) {
    static thread_local Scratch kept;
    state_ = kept.get<float>(V_ * row_ + 5 * row_ + whole_lanes(V_));
    k_ = state_ + V_ * row_;
    q_ = k_ + row_;
    decays_ = q_ + row_;
    decayed_k_ = decays_ + row_;
    decayed_q_ = decayed_k_ + row_;
    y_ = decayed_q_ + row_;
  }

  void run() const {
    const int64_t source = call_.source[piece_], target = call_.target[piece_];
    const int first = call_.piece_chunk[piece_], end = call_.piece_chunk[piece_ + 1];
    for (int64_t v = 0; v < V_; ++v) {
      for (int64_t k = 0; k < K_; k += kLanes) {
        (source < 0 ? Lanes::zero() : tensors_.state(source, head_, v, k)).store(state_ + v * row_ + k);
      }
    }
    for (int chunk = first; chunk < end; ++chunk) {
      for (int64_t row = call_.chunk_start[chunk]; row < call_.chunk_start[chunk + 1]; ++row) go_on(row);
      if (call_.chunk_track[chunk] >= 0) keep_state(call_.chunk_track[chunk], call_.chunk_noise[chunk]);
    }
    if (target >= 0) keep_state(target, call_.chunk_noise[end - 1]);
  }

 private:
  void go_on(int64_t row) const {
    const int key_head = tensors_.key_head(head_);
    tensors_.key(row, key_head, k_);
    tensors_.query(row, key_head, q_);
    tensors_.decays(row, head_, decays_);
    const float beta = tensors_.beta(row, head_);
    Lanes both = Lanes::zero();
    for (int64_t n = 0; n < K_; n += kLanes) {
      const Lanes decay = Lanes::load(decays_ + n), key = Lanes::load(k_ + n), query = Lanes::load(q_ + n);
      both = Lanes::fused(key, query, both);
      (decay * key).store(decayed_k_ + n);
      (decay * query).store(decayed_q_ + n);
    }
    const float kq = both.sum();
    for (int64_t v = 0; v < V_; v += kLanes) tensors_.v(row, head_, v).store(y_ + v);
    int64_t v = 0;
    for (; v + kTogether <= V_; v += kTogether) move_rows<kTogether>(v, beta, kq);
    for (; v < V_; ++v) move_rows<1>(v, beta, kq);
    for (v = 0; v < V_; v += kLanes) tensors_.put_out(row, head_, v, Lanes::load(y_ + v));
  }

  // Advances some rows of the state from `v` on; y_ holds values at first and then outputs.
  template <int kRows>
  void move_rows(int64_t v, float beta, float kq) const {
    float* rows = state_ + v * row_;
    Lanes sk[kRows], sq[kRows], inflow[kRows];
    for (int r = 0; r < kRows; ++r) sk[r] = sq[r] = Lanes::zero();
    for (int64_t n = 0; n < K_; n += kLanes) {
      const Lanes key = Lanes::load(decayed_k_ + n), query = Lanes::load(decayed_q_ + n);
      for (int r = 0; r < kRows; ++r) {
        const Lanes s = Lanes::load(rows + r * row_ + n);
        sk[r] = Lanes::fused(s, key, sk[r]);
        sq[r] = Lanes::fused(s, query, sq[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const float u = beta * (y_[v + r] - sk[r].sum());
      y_[v + r] = std::fma(u, kq, sq[r].sum());
      inflow[r] = Lanes::all(u);
    }
    for (int64_t n = 0; n < K_; n += kLanes) {
      const Lanes key = Lanes::load(k_ + n), decay = Lanes::load(decays_ + n);
      for (int r = 0; r < kRows; ++r) {
        float* at = rows + r * row_ + n;
        Lanes::fused(Lanes::load(at), decay, inflow[r] * key).store(at);
      }
    }
  }

  void keep_state(int64_t slot, uint32_t noise) const {
    for (int64_t v = 0; v < V_; ++v) {
      for (int64_t k = 0; k < K_; k += kLanes) {
        tensors_.put_state(slot, head_, v, k, Lanes::load(state_ + v * row_ + k), noise);
      }
    }
  }

  static constexpr int kTogether = 4;  // rows of a state: eight chains, keys loaded once

  const GatedDeltaPrefill& call_;
  DeltaTensors tensors_;
  int piece_, head_;
  int64_t V_, K_, row_;
  float* state_;      // [V, row_]
  float* k_;          // [row_], like the next four
  float* q_;
  float* decays_;
  float* decayed_k_;
  float* decayed_q_;
  float* y_;          // [V]
};

}  // namespace
