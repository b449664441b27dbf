// A mixer of the gated delta rule between its two projections: convolution, recurrence, norm of each head and gate,
// in one call; decoding rows, and pieces of prompts. Included once by each instruction set.
//
// The three parts follow one another over all rows. Work is divided by rows, and in the recurrence by heads of a
// sequence, never within a sum, so the bits of a row depend neither on the threads nor on the other rows.
#pragma once
#include <algorithm>

#include "convolution.h"
#include "gated_delta_prefill.h"
#include "gated_delta_update.h"
#include "norms.h"
#include "piece_inputs.h"
#include "ring_lanes.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kRowsOfAPart = 8;  // rows of a job in a prompt's convolution or norm: tens of microseconds

template <typename T, typename Call>
class DeltaMixerCall {
 public:
  DeltaMixerCall(const Call& call, int64_t rows)
      : call_(call),
        mixer_(*call.mixer),
        rows_(rows),
        keys_(int64_t{mixer_.key_heads} * mixer_.key_dim),
        values_(int64_t{mixer_.heads} * mixer_.value_dim),
        channels_(2 * keys_ + values_),
        convolution_(convolution_of<T>(call, nullptr, channels_)) {
    static thread_local Scratch kept;
    mixed_ = kept.get<T>(rows * channels_);
  }

  const Convolution<T>& convolution() const { return convolution_; }
  const T* inputs(int64_t row) const { return static_cast<const T*>(call_.projected) + row * call_.projected_stride; }
  T* mixed(int64_t row) const { return mixed_ + row * channels_; }

  // Returns the inputs of the rule after the convolution, and the place of its outputs.
  DeltaRows rule() const {
    const int64_t K = mixer_.key_dim, V = mixer_.value_dim, state = V * K;
    const T* b = inputs(0) + channels_ + values_;
    return {mixed_,
            channels_,
            K,
            mixed_ + keys_,
            channels_,
            K,
            mixed_ + 2 * keys_,
            channels_,
            V,
            b + mixer_.heads,
            call_.projected_stride,
            b,
            call_.projected_stride,
            mixer_.rate,
            mixer_.step_bias,
            call_.state,
            call_.state_stride,
            state,
            K,
            call_.out,
            values_,
            V,
            mixer_.least_square,
            mixer_.scale,
            mixer_.beta_scale,
            mixer_.heads,
            mixer_.key_heads,
            mixer_.value_dim,
            mixer_.key_dim,
            call_.kind,
            call_.state_kind,
            mixer_.decays};
  }

  // Copies the input k | v | a | b of a row to its place in a ring.
  void leave_input(int64_t row, T* own) const {
    const T* b = inputs(row) + channels_ + values_;
    const int64_t heads = mixer_.heads, decays = heads * mixer_.decays;
    own = std::copy_n(mixed(row) + keys_, keys_ + values_, own);
    own = std::copy_n(b + heads, decays, own);
    std::copy_n(b, heads, own);
  }

  // Norms and gates the outputs of the rule in place.
  void norm_and_gate(int64_t row) const {
    const auto run = mixer_.sigmoid_gate != 0 ? norm_and_gate_heads<true, T> : norm_and_gate_heads<false, T>;
    run(static_cast<T*>(call_.out) + row * values_, inputs(row) + channels_, mixer_.norm_weight, mixer_.heads,
        mixer_.value_dim, mixer_.norm_eps);
  }

  // Calls body(row) for all rows from `first` to `end`, several of them per chunk.
  template <typename Body>
  static void for_each_part(int64_t first, int64_t end, const Body& body) {
    const int64_t parts = (end - first + kRowsOfAPart - 1) / kRowsOfAPart;
    for_each_chunk(static_cast<int>(parts), [&](int part) {
      const int64_t from = first + part * kRowsOfAPart;
      body(from, from + kRowsOfAPart < end ? from + kRowsOfAPart : end);
    });
  }

 private:
  const Call& call_;
  const DeltaMixer& mixer_;
  int64_t rows_, keys_, values_, channels_;
  Convolution<T> convolution_;
  T* mixed_;  // [rows, channels] q | k | v after the convolution
};

template <typename T>
void run_delta_decode(const DeltaDecode& call) {
  const DeltaMixerCall<T, DeltaDecode> mixer(call, call.rows);
  const RingLanes ring(call.ring);
  for_each_chunk(call.rows, [&](int row) {
    mixer.convolution().move_on(mixer.inputs(row), call.source[row], call.target[row], call.track[row],
                                mixer.mixed(row));
    if (T* own = ring.own<T>(row)) mixer.leave_input(row, own);
  });
  const GatedDeltaUpdate update = {mixer.rule(), call.source, call.target, call.track, call.noise, call.ring, call.rows};
  gated_delta_update(&update);
  for_each_chunk(call.rows, [&](int row) { mixer.norm_and_gate(row); });
}

template <typename T>
void run_delta_prefill(const DeltaPrefill& call) {
  using Mixer = DeltaMixerCall<T, DeltaPrefill>;
  const int64_t rows = call.chunk_start[call.piece_chunk[call.pieces]];
  const Mixer mixer(call, rows);
  for (int piece = 0; piece < call.pieces; ++piece) {
    const PieceInputs<T> inputs(call, mixer.convolution(), mixer.inputs(0), piece);
    Mixer::for_each_part(inputs.begin(), inputs.end(), [&](int64_t from, int64_t to) {
      inputs.convolve(from, to, mixer.mixed(from));
    });
    inputs.keep_windows();
  }
  const GatedDeltaPrefill prefill = {mixer.rule(),     call.source,      call.target,      call.piece_chunk,
                                     call.chunk_start, call.chunk_track, call.chunk_noise, call.pieces};
  gated_delta_prefill(&prefill);
  Mixer::for_each_part(0, rows, [&](int64_t from, int64_t to) {
    for (int64_t row = from; row < to; ++row) mixer.norm_and_gate(row);
  });
}

void delta_decode(const DeltaDecode* call) {
  call->kind == kBfloat16 ? run_delta_decode<uint16_t>(*call) : run_delta_decode<float>(*call);
}

void delta_prefill(const DeltaPrefill* call) {
  call->kind == kBfloat16 ? run_delta_prefill<uint16_t>(*call) : run_delta_prefill<float>(*call);
}

}  // namespace
