// Inputs of the convolution of a prompt's piece: its rows, and the window before them. Included after Lanes.
#pragma once
#include <cstring>

#include "convolution.h"
#include "elements.h"
#include "functions.h"
#include "interface.h"

namespace {

constexpr int kUsualTaps = 4;

template <typename T>
class PieceInputs {
 public:
  // inputs: the inputs of row 0 of the call, whose rows are `projected_stride` elements apart.
  template <typename Call>
  PieceInputs(const Call& call, const Convolution<T>& convolution, const T* inputs, int piece)
      : convolution_(convolution),
        inputs_(inputs),
        inputs_stride_(call.projected_stride),
        chunk_start_(call.chunk_start),
        chunk_track_(call.chunk_track),
        channels_(convolution.channels),
        past_(convolution.taps - 1),
        first_chunk_(call.piece_chunk[piece]),
        end_chunk_(call.piece_chunk[piece + 1]),
        begin_(call.chunk_start[first_chunk_]),
        source_(call.source[piece]),
        target_(call.target[piece]) {}

  // Rows of the piece.
  int64_t begin() const { return begin_; }
  int64_t end() const { return chunk_start_[end_chunk_]; }

  // Computes out = silu(sum_k weight[k] input[t - K + 1 + k] + bias) of all channels of rows [from, to), rounded to T.
  void convolve(int64_t from, int64_t to, T* out) const {
    convolution_.taps == kUsualTaps ? convolve_rows<kUsualTaps>(from, to, out) : convolve_rows<0>(from, to, out);
  }

  // Stores the last inputs before each checkpoint and before the end of the piece. The slot at the end may be the one
  // from which the piece came: it is written last, and each of its inputs is read before it is overwritten.
  void keep_windows() const {
    for (int chunk = first_chunk_; chunk < end_chunk_; ++chunk) {
      if (chunk_track_[chunk] >= 0) keep_window(chunk_start_[chunk + 1], chunk_track_[chunk]);
    }
    keep_window(chunk_start_[end_chunk_], target_);
  }

 private:
  // kTaps: taps of the convolution; 0 = any number. If it is known, weights and the last inputs stay in registers.
  template <int kTaps>
  void convolve_rows(int64_t from, int64_t to, T* out) const {
    for_each_vector(0, channels_, [&](auto kWhole, int64_t c, int count) {
      const auto weight = [&](int k) { return load_part<kWhole>(convolution_.weight + k * channels_ + c, count); };
      const auto input = [&](int64_t t) {
        const T* row = at(t);
        return row == nullptr ? Lanes::zero() : load_part<kWhole>(row + c, count);
      };
      const Lanes bias = convolution_.bias == nullptr ? Lanes::zero() : load_part<kWhole>(convolution_.bias + c, count);
      const auto keep = [&](int64_t t, Lanes sum) {
        store_part<kWhole>(out + (t - from) * channels_ + c, count, silu(sum));
      };
      if constexpr (kTaps > 0) {
        Lanes weights[kTaps], last[kTaps];
        for (int k = 0; k < kTaps; ++k) weights[k] = weight(k);
        for (int k = 1; k < kTaps; ++k) last[k] = input(from - kTaps + k);
        for (int64_t t = from; t < to; ++t) {
          for (int k = 1; k < kTaps; ++k) last[k - 1] = last[k];
          last[kTaps - 1] = input(t);
          Lanes sum = bias;
          for (int k = 0; k < kTaps; ++k) sum = Lanes::fused(last[k], weights[k], sum);
          keep(t, sum);
        }
      } else {
        for (int64_t t = from; t < to; ++t) {
          Lanes sum = bias;
          for (int k = 0; k <= past_; ++k) sum = Lanes::fused(input(t - past_ + k), weight(k), sum);
          keep(t, sum);
        }
      }
    });
  }

  // Returns the inputs of row `t`, which may be up to K - 1 rows before the piece; null = zeros.
  const T* at(int64_t t) const {
    if (t >= begin_) return inputs_ + t * inputs_stride_;
    return source_ < 0 ? nullptr : convolution_.window(source_) + (past_ + t - begin_) * channels_;
  }

  void keep_window(int64_t end, int64_t slot) const {
    const size_t bytes = static_cast<size_t>(channels_) * sizeof(T);
    for (int k = 0; k < past_; ++k) {
      const T* input = at(end - past_ + k);
      T* kept = convolution_.window(slot) + k * channels_;
      if (input == nullptr) {
        std::memset(kept, 0, bytes);
      } else if (input != kept) {
        std::memcpy(kept, input, bytes);
      }
    }
  }

  const Convolution<T>& convolution_;
  const T* inputs_;
  int64_t inputs_stride_;
  const int32_t *chunk_start_, *chunk_track_;
  int64_t channels_;
  int past_, first_chunk_, end_chunk_;
  int64_t begin_, source_, target_;
};

}  // namespace
