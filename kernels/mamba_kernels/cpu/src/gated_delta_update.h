// One token of the gated delta rule (Yang et al. 2024) for each of some sequences. Included once by each
// instruction set.
//
//   u = beta (v - g S k)    S' = g S + u k^T    o = S' q = g S q + u (k . q)
//
// Where each channel of a key has a decay, g is a diagonal matrix on the right of S, and k and q are multiplied by it
// instead of the sums.
//
// Work is divided by sequence and by heads of a sequence. Some rows of a state are read, multiplied by k and q, and
// written while the first cache still holds them: a state moves once in each direction through memory.
#pragma once
#include "delta_rows.h"
#include "gated_delta_replay.h"
#include "scratch.h"

namespace {

template <typename State, bool kChannels>
class GatedDeltaUpdateCall {
 public:
  explicit GatedDeltaUpdateCall(const GatedDeltaUpdate& call)
      : call_(call), delta_(call.delta), tensors_(call.delta), V_(call.delta.value_dim), K_(call.delta.key_dim) {}

  void run() const {
    for_each_head_chunk(delta_, call_.rows, [this](int row, int first, int end) { update_heads(row, first, end); });
  }

 private:
  // Rows of a state before and after the step; null if there are none.
  struct Places {
    const State* before;
    State* after;
    State* copy;
    uint32_t first;
    uint32_t noise;
    const float* decays;  // [K] if each channel has one
  };

  // A head's key, and its key and its query as the state is multiplied by them.
  struct Keys {
    const float* k;
    const float* decayed_k;
    const float* decayed_q;
  };

  void update_heads(int row, int first, int end) const {
    static thread_local Scratch kept;
    const int64_t K_wide = whole_lanes(K_);
    float* k = kept.get<float>(5 * K_wide + whole_lanes(V_));
    float* q = k + K_wide;
    float* decays = q + K_wide;
    float* y = decays + 3 * K_wide;
    int key_head = -1;
    for (int head = first; head < end; ++head) {
      if (tensors_.key_head(head) != key_head) {
        key_head = tensors_.key_head(head);
        tensors_.key(row, key_head, k);
        tensors_.query(row, key_head, q);
      }
      update(row, head, k, q, decays, y);
    }
  }

  State* state(int64_t slot, int head) const {
    return slot < 0 ? nullptr : static_cast<State*>(delta_.state) + tensors_.place(slot, head, 0);
  }

  // Advances the state of a head; y: [V], which holds v at first and then the outputs; scratch: [3 K].
  void update(int row, int head, const float* k, const float* q, float* scratch, float* y) const {
    const int64_t source = call_.source[row], target = call_.target[row], track = call_.track[row];
    const Places places = {state(source, head), state(target, head), state(track, head),
                           tensors_.first_element(head), call_.noise[row],    scratch};
    const float beta = tensors_.beta(row, head);
    Lanes both = Lanes::zero();
    for (int n = 0; n < K_; n += kLanes) both = Lanes::fused(Lanes::load(k + n), Lanes::load(q + n), both);
    const float kq = both.sum();
    float decay = 1.0f;
    const float* decayed_k = k;
    const float* decayed_q = q;
    if (kChannels) {
      float* out_k = scratch + whole_lanes(K_);
      float* out_q = out_k + whole_lanes(K_);
      tensors_.decays(row, head, scratch);
      for (int n = 0; n < K_; n += kLanes) {
        (Lanes::load(scratch + n) * Lanes::load(k + n)).store(out_k + n);
        (Lanes::load(scratch + n) * Lanes::load(q + n)).store(out_q + n);
      }
      decayed_k = out_k;
      decayed_q = out_q;
    } else {
      decay = std::exp(delta_.rate[head] * tensors_.step(row, head));
    }
    const Keys keys = {k, decayed_k, decayed_q};
    for (int p = 0; p < V_; p += kLanes) tensors_.v(row, head, p).store(y + p);
    for (int p = 0; p < V_;) {
      if (V_ - p >= kDeltaRows) {
        update_rows<kDeltaRows>(places, p, decay, beta, kq, keys, y);
        p += kDeltaRows;
      } else {
        update_rows<1>(places, p, decay, beta, kq, keys, y);
        ++p;
      }
    }
    for (int p = 0; p < V_; p += kLanes) tensors_.put_out(row, head, p, Lanes::load(y + p));
  }

  template <int kRows>
  void update_rows(const Places& places, int p, float decay, float beta, float kq, const Keys& keys, float* y) const {
    // Whole vectors have their own loop without calls between them, so that sums stay in registers.
    const int whole = K_ / kLanes * kLanes;
    Lanes sk[kRows], sq[kRows], inflow[kRows];
    for (int r = 0; r < kRows; ++r) sk[r] = sq[r] = Lanes::zero();
    if (places.before != nullptr) {
      for (int n = 0; n < whole; n += kLanes) add_sums<kRows, true>(places.before, p, n, keys, sk, sq);
      if (whole < K_) add_sums<kRows, false>(places.before, p, whole, keys, sk, sq);
    }
    for (int r = 0; r < kRows; ++r) {
      const float u = beta * std::fma(-decay, sk[r].sum(), y[p + r]);
      y[p + r] = std::fma(u, kq, decay * sq[r].sum());
      inflow[r] = Lanes::all(u);
    }
    if (places.after == nullptr && places.copy == nullptr) return;
    for (int n = 0; n < whole; n += kLanes) write<kRows, true>(places, p, n, decay, keys.k, inflow);
    if (whole < K_) write<kRows, false>(places, p, whole, decay, keys.k, inflow);
  }

  // Computes sk[r] += S[p + r] k and sq[r] += S[p + r] q for sixteen columns from `n` on, or as many as are left.
  template <int kRows, bool kWhole>
  void add_sums(const State* before, int p, int n, const Keys& keys, Lanes (&sk)[kRows], Lanes (&sq)[kRows]) const {
    const Lanes key = Lanes::load(keys.decayed_k + n), query = Lanes::load(keys.decayed_q + n);
    for (int r = 0; r < kRows; ++r) {
      const State* at = before + (p + r) * delta_.state_row + n;
      if (Lanes::kReadAhead > 0) ask_ahead(at, kLanes * sizeof(State));
      const Lanes s = load_part<kWhole>(at, K_ - n);
      sk[r] = Lanes::fused(s, key, sk[r]);
      sq[r] = Lanes::fused(s, query, sq[r]);
    }
  }

  // Computes S'[p + r] = g S[p + r] + inflow[r] k for the same columns.
  template <int kRows, bool kWhole>
  void write(const Places& places, int p, int n, float decay, const float* k, const Lanes (&inflow)[kRows]) const {
    const Lanes key = Lanes::load(k + n), kept = kChannels ? Lanes::load(places.decays + n) : Lanes::all(decay);
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = (p + r) * delta_.state_row + n;
      Lanes s = inflow[r] * key;
      if (places.before != nullptr) {
        s = Lanes::fused(load_part<kWhole>(places.before + at, K_ - n), kept, s);
      }
      const uint32_t element = places.first + static_cast<uint32_t>((p + r) * K_ + n);
      const Lanes stored = as_stored<State>(s, element, places.noise);
      if (places.after != nullptr) store_part<kWhole>(places.after + at, K_ - n, stored);
      if (places.copy != nullptr) store_part<kWhole>(places.copy + at, K_ - n, stored);
    }
  }

  const GatedDeltaUpdate& call_;
  const DeltaRows& delta_;
  DeltaTensors tensors_;
  int V_, K_;
};

template <typename State, bool kChannels>
void run_gated_delta_update(const GatedDeltaUpdate& call) {
  if (call.ring.lane != nullptr) return gated_delta_replay<State, kChannels>(call);
  GatedDeltaUpdateCall<State, kChannels>(call).run();
}

template <bool kChannels>
void gated_delta_update_of(const GatedDeltaUpdate& call) {
  if (call.delta.state_kind == kFloat16) return run_gated_delta_update<Half, kChannels>(call);
  if (call.delta.state_kind == kBfloat16) return run_gated_delta_update<uint16_t, kChannels>(call);
  run_gated_delta_update<float, kChannels>(call);
}

void gated_delta_update(const GatedDeltaUpdate* call) {
  call->delta.decays > 1 ? gated_delta_update_of<true>(*call) : gated_delta_update_of<false>(*call);
}

}  // namespace
