// One token of a Mamba2 mixer between its two projections: convolution window, step size, recurrence, gate and
// norm, in one call. Included once by each instruction set.
//
// Work is divided by sequence and by heads of a sequence, never within a sum, so the bits of a row depend neither on
// the threads nor on the other rows. A state is read once and written once; a tracked state is written to its second
// slot from the same registers. With a ring a state is written by some of its tokens only: see `mamba_replay.h`.
#pragma once
#include <cstring>
#include <type_traits>

#include "convolution.h"
#include "mamba_replay.h"
#include "norms.h"
#include "ring_lanes.h"
#include "scratch.h"

namespace {

constexpr int64_t kStateChunk = 1 << 15;  // state elements of a chunk: 128 KB, tens of microseconds
constexpr int kRowsOfState = 4;           // rows of a head's state at once: four chains, B and C loaded once

template <typename T, typename State>
class MambaDecodeCall {
 public:
  MambaDecodeCall(const MambaDecode& call, float* scratch)
      : call_(call),
        mixer_(*call.mixer),
        inner_(int64_t{mixer_.heads} * mixer_.head_dim),
        shared_(int64_t{mixer_.groups} * mixer_.state_size),
        channels_(inner_ + 2 * shared_),
        convolution_(convolution_of<T>(call, mixer_.conv_bias, channels_)),
        ring_(call.ring),
        mixed_(scratch),
        y_(scratch + call.rows * channels_) {}

  static int64_t scratch_size(const MambaDecode& call) {
    const Mixer& mixer = *call.mixer;
    const int64_t inner = int64_t{mixer.heads} * mixer.head_dim;
    return call.rows * (2 * inner + 2 * int64_t{mixer.groups} * mixer.state_size);
  }

  void run() const {
    for_each_chunk(call_.rows, [this](int row) { convolve(row); });
    const int64_t per_head = int64_t{mixer_.head_dim} * mixer_.state_size;
    const int together = static_cast<int>(per_head < kStateChunk ? kStateChunk / per_head : 1);
    const int parts = (mixer_.heads + together - 1) / together;
    for_each_chunk(call_.rows * parts, [&](int chunk) {
      const int first = chunk % parts * together;
      const int end = first + together < mixer_.heads ? first + together : mixer_.heads;
      if (ring_.in_use()) return replay(chunk / parts, first, end);
      for (int head = first; head < end; ++head) update(chunk / parts, head);
    });
    for_each_chunk(call_.rows, [this](int row) {
      gated_norm_row(y_ + row * inner_, projected(row), static_cast<const T*>(mixer_.norm_weight),
                     static_cast<T*>(call_.out) + row * inner_, inner_, mixer_.norm_groups, mixer_.norm_eps);
    });
  }

 private:
  const T* projected(int64_t row) const {
    return static_cast<const T*>(call_.projected) + row * call_.projected_stride;
  }
  State* state(int64_t slot, int head) const {
    return static_cast<State*>(call_.state) + slot * call_.state_stride +
           int64_t{head} * mixer_.head_dim * mixer_.state_size;
  }

  // Convolves all channels, rounded to T, and advances the window; leaves the row's input in its lane of the ring.
  void convolve(int row) const {
    float* mixed = mixed_ + row * channels_;
    convolution_.move_on(projected(row) + inner_, call_.source[row], call_.target[row], call_.track[row], mixed);
    T* own = ring_.own<T>(row);
    if (own == nullptr) return;
    for_each_vector(0, inner_ + shared_, [&](auto kWhole, int64_t i, int count) {
      store_part<kWhole>(own + i, count, load_part<kWhole>(mixed + i, count));
    });
    std::memcpy(own + inner_ + shared_, projected(row) + inner_ + channels_, mixer_.heads * sizeof(T));
  }

  // Computes a token's step size from its raw input.
  float step(T raw, int head) const {
    const float step = softplus(load_some(&raw, 1).sum() + mixer_.step_bias[head]);
    return step < mixer_.step_min ? mixer_.step_min : step > mixer_.step_max ? mixer_.step_max : step;
  }
  int group(int head) const { return head / (mixer_.heads / mixer_.groups); }

  // Computes h = exp(dt A) h + dt x B and y = C h + D x.
  void update(int row, int head) const {
    const int64_t source = call_.source[row], track = call_.track[row];
    const int N = mixer_.state_size, P = mixer_.head_dim;
    const float* x = mixed_ + row * channels_ + int64_t{head} * P;
    const float* B = mixed_ + row * channels_ + inner_ + int64_t{group(head)} * N;
    const float* C = B + shared_;
    const float step = this->step(projected(row)[inner_ + channels_ + head], head);
    const Lanes decay = Lanes::all(std::exp(step * mixer_.rate[head]));
    const State* before = source < 0 ? nullptr : state(source, head);
    State* after = state(call_.target[row], head);
    State* copy = track < 0 ? nullptr : state(track, head);
    float* y = y_ + row * inner_ + int64_t{head} * P;
    const uint32_t noise = call_.noise[row], first = static_cast<uint32_t>(int64_t{head} * P * N);
    for (int p = 0; p < P;) {
      if (P - p >= kRowsOfState) {
        update_rows<kRowsOfState>(before, after, copy, p, N, decay, step, x, B, C, y, first, noise);
        p += kRowsOfState;
      } else {
        update_rows<1>(before, after, copy, p, N, decay, step, x, B, C, y, first, noise);
        ++p;
      }
    }
    for (int p = 0; p < P; ++p) y[p] += mixer_.skip[head] * x[p];
  }

  // Computes the same for heads whose states lack the inputs in the row's lane of the ring.
  void replay(int row, int first, int end) const {
    static thread_local Scratch kept;
    const int N = mixer_.state_size, P = mixer_.head_dim, waiting = ring_.waiting(row), count = waiting + 1;
    const int64_t N_wide = whole_lanes(N), P_wide = whole_lanes(P);
    float* B = kept.get<float>(count * (N_wide + P_wide + 1));
    float* inflow = B + count * N_wide;
    float* decay = inflow + count * P_wide;
    const FoldedTokens tokens = {count, decay, inflow, P_wide, B, N_wide};
    const bool writes = ring_.writes(row);
    const int64_t source = call_.source[row], target = writes ? call_.target[row] : -1, track = call_.track[row];
    for (int head = first; head < end; ++head) {
      const int64_t at_x = int64_t{head} * P, at_B = inner_ + int64_t{group(head)} * N;
      const float* own = mixed_ + row * channels_;
      const bool same_group = head > first && group(head) == group(head - 1);
      for (int i = 0; i < count; ++i) {
        const T* input = i < waiting ? ring_.input<T>(ring_.first(row) + i) : nullptr;
        const T raw = input == nullptr ? projected(row)[inner_ + channels_ + head] : input[inner_ + shared_ + head];
        const float step = this->step(raw, head);
        decay[i] = std::exp(step * mixer_.rate[head]);
        const auto set = [&](int64_t from, int64_t size, Lanes factor, float* out) {
          for (int64_t k = 0; k < size; k += kLanes) {
            const int rest = static_cast<int>(size - k);
            (factor * (input == nullptr ? load_some(own + from + k, rest) : load_some(input + from + k, rest)))
                .store(out + k);
          }
        };
        set(at_x, P, Lanes::all(step), inflow + i * P_wide);
        if (!same_group) set(at_B, N, Lanes::all(1.0f), B + i * N_wide);
      }
      const FoldedPlaces<State> places = {source < 0 ? nullptr : state(source, head),
                                          target < 0 ? nullptr : state(target, head),
                                          target < 0 || track < 0 ? nullptr : state(track, head),
                                          static_cast<uint32_t>(at_x * N), call_.noise[row]};
      float* y = y_ + row * inner_ + at_x;
      int p = 0;
      for (; P - p >= kRowsOfState; p += kRowsOfState) {
        fold_rows<kRowsOfState>(tokens, places, p, N, own + at_B + shared_, y);
      }
      for (; p < P; ++p) fold_rows<1>(tokens, places, p, N, own + at_B + shared_, y);
      for (p = 0; p < P; ++p) y[p] += mixer_.skip[head] * own[at_x + p];
    }
  }

  template <int kRows>
  static void update_rows(const State* before, State* after, State* copy, int p, int N, Lanes decay, float step,
                          const float* x, const float* B, const float* C, float* y, uint32_t first, uint32_t noise) {
    Lanes inflow[kRows], sums[kRows];
    for (int r = 0; r < kRows; ++r) {
      inflow[r] = Lanes::all(step * x[p + r]);
      sums[r] = Lanes::zero();
    }
    const auto columns = [&](auto kWhole, int n) {
      const int count = N - n;
      const Lanes b = load_part<kWhole>(B + n, count), c = load_part<kWhole>(C + n, count);
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = int64_t{p + r} * N + n;
        if (Lanes::kReadAhead > 0 && before != nullptr) ask_ahead(before + at, kLanes * sizeof(State));
        Lanes h = inflow[r] * b;
        if (before != nullptr) h = Lanes::fused(load_part<kWhole>(before + at, count), decay, h);
        sums[r] = Lanes::fused(h, c, sums[r]);
        const Lanes stored = as_stored<State>(h, first + static_cast<uint32_t>(at), noise);
        store_part<kWhole>(after + at, count, stored);
        if (copy != nullptr) store_part<kWhole>(copy + at, count, stored);
      }
    };
    const int whole = N / kLanes * kLanes;
    for (int n = 0; n < whole; n += kLanes) columns(std::true_type{}, n);
    if (whole < N) columns(std::false_type{}, whole);
    for (int r = 0; r < kRows; ++r) y[p + r] = sums[r].sum();
  }

  const MambaDecode& call_;
  const Mixer& mixer_;
  int64_t inner_, shared_, channels_;
  Convolution<T> convolution_;
  RingLanes ring_;
  float* mixed_;  // [rows, channels] x | B | C after the convolution
  float* y_;      // [rows, inner]
};

template <typename T, typename State>
void run_mamba_decode(const MambaDecode& call) {
  static thread_local Scratch scratch;
  MambaDecodeCall<T, State>(call, scratch.get<float>(MambaDecodeCall<T, State>::scratch_size(call))).run();
}

void mamba_decode(const MambaDecode* call) {
  const bool half = call->state_kind == kFloat16;
  if (call->kind == kBfloat16) {
    half ? run_mamba_decode<uint16_t, Half>(*call) : run_mamba_decode<uint16_t, float>(*call);
  } else {
    half ? run_mamba_decode<float, Half>(*call) : run_mamba_decode<float, float>(*call);
  }
}

}  // namespace
