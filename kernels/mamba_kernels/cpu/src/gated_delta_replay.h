// One token of the gated delta rule for sequences whose states lack the inputs of earlier tokens, which wait
// in a ring. Included once by each instruction set.
//
// Some rows of a state are read once, and stay in the first cache while one token after another is folded
// into them, by the operations of single tokens in their order. One pass writes the rows after a token, and
// multiplies them by the key of the next token.
#pragma once
#include "delta_rows.h"
#include "ring_lanes.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

template <typename State, bool kChannels>
class GatedDeltaReplayCall {
 public:
  // `waiting`: the rule with the inputs of all lanes as its rows.
  GatedDeltaReplayCall(const GatedDeltaUpdate& call, const DeltaRows& waiting)
      : call_(call),
        delta_(call.delta),
        ring_(call.ring),
        own_(delta_),
        waiting_(waiting),
        V_(delta_.value_dim),
        K_(delta_.key_dim),
        K_wide_(whole_lanes(K_)),
        V_wide_(whole_lanes(V_)) {}

  void run() const {
    for_each_head_chunk(delta_, call_.rows, [this](int row, int first, int end) { replay_heads(row, first, end); });
  }

 private:
  // Tokens that one head folds, oldest first; the last one is the step's own. Rows of K are padded to whole
  // vectors with zeros.
  struct Tokens {
    int count;
    const float* k;          // [count, K]
    const float* decayed_k;  // [count, K] the key as the state is multiplied by it
    const float* decayed_q;  // [K] likewise the query of the last token
    const float* decays;     // [count, K] if each channel has one
    const float* decay;      // [count]; 1 if each channel has one
    const float* beta;       // [count]
    const float* v;          // [count, V]
    float kq;                // product of the last key and query
  };
  struct Places {
    const State* before;
    State* after;
    State* copy;
    uint32_t first;
    uint32_t noise;
  };

  State* state(int64_t slot, int head) const {
    return slot < 0 ? nullptr : static_cast<State*>(delta_.state) + own_.place(slot, head, 0);
  }

  void replay_heads(int row, int first, int end) const {
    static thread_local Scratch kept;
    const int waiting = ring_.waiting(row), count = waiting + 1;
    const int64_t input = ring_.first(row);
    const bool writes = ring_.writes(row);
    float* k = kept.get<float>(count * (3 * K_wide_ + V_wide_ + 2) + 2 * K_wide_ + kDeltaRows * K_wide_ + V_wide_);
    float* decayed_k = k + count * K_wide_;
    float* decays = decayed_k + count * K_wide_;
    float* v = decays + count * K_wide_;
    float* q = v + count * V_wide_;
    float* decayed_q = q + K_wide_;
    float* some = decayed_q + K_wide_;
    float* y = some + kDeltaRows * K_wide_;
    float* decay = y + V_wide_;
    float* beta = decay + count;
    for (int head = first; head < end; ++head) {
      const int key_head = own_.key_head(head);
      const bool same_key = head > first && key_head == own_.key_head(head - 1);
      for (int i = 0; i < count; ++i) {
        const DeltaTensors& tensors = i < waiting ? waiting_ : own_;
        const int64_t at = i < waiting ? input + i : row;
        if (!same_key) tensors.key(at, key_head, k + i * K_wide_);
        beta[i] = tensors.beta(at, head);
        for (int64_t p = 0; p < V_; p += kLanes) tensors.v(at, head, p).store(v + i * V_wide_ + p);
        decay[i] = 1.0f;
        if (kChannels) {
          tensors.decays(at, head, decays + i * K_wide_);
          multiply(decays + i * K_wide_, k + i * K_wide_, decayed_k + i * K_wide_);
        } else {
          decay[i] = std::exp(delta_.rate[head] * tensors.step(at, head));
        }
      }
      if (!same_key) own_.query(row, key_head, q);
      const float* last_k = k + waiting * K_wide_;
      Lanes both = Lanes::zero();
      for (int64_t n = 0; n < K_; n += kLanes) both = Lanes::fused(Lanes::load(last_k + n), Lanes::load(q + n), both);
      if (kChannels) multiply(decays + waiting * K_wide_, q, decayed_q);
      const Tokens tokens = {count,  k,     kChannels ? decayed_k : k, kChannels ? decayed_q : q,
                             decays, decay, beta,                      v,
                             both.sum()};
      const int64_t target = writes ? call_.target[row] : -1, track = writes ? call_.track[row] : -1;
      const Places places = {state(call_.source[row], head), state(target, head), state(track, head),
                             own_.first_element(head), call_.noise[row]};
      int p = 0;
      for (; V_ - p >= kDeltaRows; p += kDeltaRows) fold_rows<kDeltaRows>(tokens, places, p, some, y);
      for (; p < V_; ++p) fold_rows<1>(tokens, places, p, some, y);
      for (p = 0; p < V_; p += kLanes) own_.put_out(row, head, p, Lanes::load(y + p));
    }
  }

  void multiply(const float* a, const float* b, float* out) const {
    for (int64_t n = 0; n < K_; n += kLanes) (Lanes::load(a + n) * Lanes::load(b + n)).store(out + n);
  }

  // Folds the tokens into `kRows` rows of a state from `p` on, and computes the output of the last one.
  template <int kRows>
  void fold_rows(const Tokens& tokens, const Places& places, int p, float* some, float* y) const {
    const int last = tokens.count - 1;
    Lanes sk[kRows], sq[kRows], inflow[kRows];
    for (int r = 0; r < kRows; ++r) sk[r] = sq[r] = Lanes::zero();
    if (places.before != nullptr) {
      read<kRows>(places.before, p, some);
      last == 0 ? add_sums<kRows, true>(tokens, 0, some, sk, sq) : add_sums<kRows, false>(tokens, 0, some, sk, sq);
    }
    for (int i = 0; i < last; ++i) {
      for (int r = 0; r < kRows; ++r) {
        inflow[r] = Lanes::all(tokens.beta[i] * std::fma(-tokens.decay[i], sk[r].sum(), tokens.v[i * V_wide_ + p + r]));
        sk[r] = Lanes::zero();
      }
      const bool empty = i == 0 && places.before == nullptr;
      i + 1 == last ? advance<kRows, true>(tokens, i, empty, inflow, some, sk, sq)
                    : advance<kRows, false>(tokens, i, empty, inflow, some, sk, sq);
    }
    const float decay = tokens.decay[last];
    for (int r = 0; r < kRows; ++r) {
      const float u = tokens.beta[last] * std::fma(-decay, sk[r].sum(), tokens.v[last * V_wide_ + p + r]);
      y[p + r] = std::fma(u, tokens.kq, decay * sq[r].sum());
      inflow[r] = Lanes::all(u);
    }
    if (places.after == nullptr && places.copy == nullptr) return;
    write<kRows>(tokens, places, p, last == 0 && places.before == nullptr, inflow, some);
  }

  // Copies rows of a state to the first cache.
  template <int kRows>
  void read(const State* before, int p, float* some) const {
    for (int r = 0; r < kRows; ++r) {
      const State* from = before + (p + r) * delta_.state_row;
      for_each_vector(0, K_, [&](auto kWhole, int64_t n, int count) {
        if (Lanes::kReadAhead > 0) ask_ahead(from + n, kLanes * sizeof(State));
        load_part<kWhole>(from + n, count).store(some + r * K_wide_ + n);
      });
    }
  }

  // Computes sk[r] += S[r] k of a token, and sq[r] += S[r] q of the last one.
  template <int kRows, bool kLast>
  void add_sums(const Tokens& tokens, int i, const float* some, Lanes (&sk)[kRows], Lanes (&sq)[kRows]) const {
    for (int64_t n = 0; n < K_; n += kLanes) {
      const Lanes key = Lanes::load(tokens.decayed_k + i * K_wide_ + n);
      const Lanes query = kLast ? Lanes::load(tokens.decayed_q + n) : key;
      for (int r = 0; r < kRows; ++r) {
        const Lanes s = Lanes::load(some + r * K_wide_ + n);
        sk[r] = Lanes::fused(s, key, sk[r]);
        if (kLast) sq[r] = Lanes::fused(s, query, sq[r]);
      }
    }
  }

  // Returns S' = g S + inflow k of sixteen columns of a row from `n` on.
  Lanes after(const Tokens& tokens, int i, bool empty, Lanes inflow, const float* s, int64_t n) const {
    const Lanes added = inflow * Lanes::load(tokens.k + i * K_wide_ + n);
    if (empty) return added;
    const Lanes kept = kChannels ? Lanes::load(tokens.decays + i * K_wide_ + n) : Lanes::all(tokens.decay[i]);
    return Lanes::fused(Lanes::load(s + n), kept, added);
  }

  // Folds token `i`, which is not the last one, and adds the sums of the next one. kLast: the next one is the
  // last.
  template <int kRows, bool kLast>
  void advance(const Tokens& tokens, int i, bool empty, const Lanes (&inflow)[kRows], float* some, Lanes (&sk)[kRows],
               Lanes (&sq)[kRows]) const {
    for (int64_t n = 0; n < K_; n += kLanes) {
      const Lanes key = Lanes::load(tokens.decayed_k + (i + 1) * K_wide_ + n);
      const Lanes query = kLast ? Lanes::load(tokens.decayed_q + n) : key;
      for (int r = 0; r < kRows; ++r) {
        const Lanes s = after(tokens, i, empty, inflow[r], some + r * K_wide_, n);
        s.store(some + r * K_wide_ + n);
        sk[r] = Lanes::fused(s, key, sk[r]);
        if (kLast) sq[r] = Lanes::fused(s, query, sq[r]);
      }
    }
  }

  // Writes the rows after the last token to the state and to its copy.
  template <int kRows>
  void write(const Tokens& tokens, const Places& places, int p, bool empty, const Lanes (&inflow)[kRows],
             const float* some) const {
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = (p + r) * delta_.state_row;
      for_each_vector(0, K_, [&](auto kWhole, int64_t n, int count) {
        const Lanes s = after(tokens, tokens.count - 1, empty, inflow[r], some + r * K_wide_, n);
        const uint32_t element = places.first + static_cast<uint32_t>(int64_t{p + r} * K_ + n);
        const Lanes stored = as_stored<State>(s, element, places.noise);
        if (places.after != nullptr) store_part<kWhole>(places.after + at + n, count, stored);
        if (places.copy != nullptr) store_part<kWhole>(places.copy + at + n, count, stored);
      });
    }
  }

  const GatedDeltaUpdate& call_;
  const DeltaRows& delta_;
  RingLanes ring_;
  DeltaTensors own_, waiting_;
  int V_, K_;
  int64_t K_wide_, V_wide_;
};

// Returns the rule with the inputs of all lanes, k | v | a | b, as its rows.
template <typename T>
DeltaRows waiting_inputs(const GatedDeltaUpdate& call) {
  DeltaRows rows = call.delta;
  const int64_t keys = int64_t{rows.key_heads} * rows.key_dim, values = int64_t{rows.heads} * rows.value_dim;
  const T* k = static_cast<const T*>(call.ring.inputs);
  rows.k = k;
  rows.v = k + keys;
  rows.a = k + keys + values;
  rows.b = k + keys + values + int64_t{rows.heads} * rows.decays;
  rows.k_row = rows.v_row = rows.a_row = rows.b_row = call.ring.width;
  rows.k_head = rows.key_dim;
  rows.v_head = rows.value_dim;
  return rows;
}

template <typename State, bool kChannels>
void gated_delta_replay(const GatedDeltaUpdate& call) {
  const bool narrow = call.delta.kind == kBfloat16;
  const DeltaRows waiting = narrow ? waiting_inputs<uint16_t>(call) : waiting_inputs<float>(call);
  GatedDeltaReplayCall<State, kChannels>(call, waiting).run();
}

}  // namespace
