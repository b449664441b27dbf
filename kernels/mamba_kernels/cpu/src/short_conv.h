// The gated short convolution between two projections: y = c (sum_k weight[k] u[t - K + 1 + k] + bias), u = b v rounded
// to T. Decoding rows, and pieces of prompts. Included once by each instruction set.
//
// Sums follow the order of the inputs in decodes and in prompts, and no sum is divided. So the bits of a row
// depend neither on the threads nor on the other rows, and a prompt has the bits of its tokens one by one.
#pragma once
#include <cstring>

#include "elements.h"
#include "interface.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kShortConvRows = 16;  // rows of a job in a prompt: tens of microseconds

template <typename T, typename Call>
class ShortConvRows {
 public:
  explicit ShortConvRows(const Call& call)
      : call_(call), mixer_(*call.mixer), channels_(mixer_.channels), past_(mixer_.taps - 1) {}

  int64_t channels() const { return channels_; }
  int past() const { return past_; }
  T* window(int64_t slot) const { return static_cast<T*>(call_.window) + slot * call_.window_stride; }
  const T* row(int64_t t) const { return static_cast<const T*>(call_.projected) + t * call_.projected_stride; }
  T* out(int64_t t) const { return static_cast<T*>(call_.out) + t * channels_; }

  template <bool kWhole>
  Lanes weight(int k, int64_t c, int count) const {
    return load_part<kWhole>(mixer_.conv_weight + k * channels_ + c, count);
  }
  template <bool kWhole>
  Lanes bias(int64_t c, int count) const {
    return mixer_.conv_bias == nullptr ? Lanes::zero() : load_part<kWhole>(mixer_.conv_bias + c, count);
  }

  // Returns inputs of row `t`, rounded as windows hold them.
  template <bool kWhole>
  Lanes input(int64_t t, int64_t c, int count) const {
    const T* at = row(t) + c;
    T rounded[kLanes];
    store(rounded, load_part<kWhole>(at, count) * load_part<kWhole>(at + 2 * channels_, count));
    return load(rounded);
  }
  template <bool kWhole>
  void gate_and_keep(int64_t t, int64_t c, int count, Lanes sum) const {
    store_part<kWhole>(out(t) + c, count, sum * load_part<kWhole>(row(t) + channels_ + c, count));
  }

 private:
  const Call& call_;
  const ShortConvMixer& mixer_;
  int64_t channels_;
  int past_;
};

template <typename T>
void run_short_conv_decode(const ShortConvDecode& call) {
  const ShortConvRows<T, ShortConvDecode> rows(call);
  for_each_chunk(call.rows, [&](int row) {
    const int64_t source = call.source[row], target = call.target[row], track = call.track[row];
    for_each_vector(0, rows.channels(), [&](auto kWhole, int64_t c, int count) {
      Lanes sum = rows.template bias<kWhole>(c, count);
      for (int k = 0; k <= rows.past(); ++k) {
        const Lanes x = k == rows.past() ? rows.template input<kWhole>(row, c, count)
                        : source < 0     ? Lanes::zero()
                                         : load_part<kWhole>(rows.window(source) + k * rows.channels() + c, count);
        sum = Lanes::fused(x, rows.template weight<kWhole>(k, c, count), sum);
        // The oldest input is dropped; in place, each input is read before the one before it is overwritten.
        if (k > 0) {
          store_part<kWhole>(rows.window(target) + (k - 1) * rows.channels() + c, count, x);
          if (track >= 0) store_part<kWhole>(rows.window(track) + (k - 1) * rows.channels() + c, count, x);
        }
      }
      rows.template gate_and_keep<kWhole>(row, c, count, sum);
    });
  });
}

// A piece of a prompt: its rows, and the window before them.
template <typename T>
class ShortConvPiece {
 public:
  ShortConvPiece(const ShortConvPrefill& call, int piece)
      : call_(call),
        rows_(call),
        first_chunk_(call.piece_chunk[piece]),
        end_chunk_(call.piece_chunk[piece + 1]),
        begin_(call.chunk_start[first_chunk_]),
        end_(call.chunk_start[end_chunk_]),
        source_(call.source[piece]),
        target_(call.target[piece]) {}

  void run() const {
    const int64_t parts = (end_ - begin_ + kShortConvRows - 1) / kShortConvRows;
    for_each_chunk(static_cast<int>(parts), [&](int part) {
      const int64_t from = begin_ + part * kShortConvRows;
      convolve(from, from + kShortConvRows < end_ ? from + kShortConvRows : end_);
    });
    // The slot at the end may be the one from which the piece came: it is written last.
    for (int chunk = first_chunk_; chunk < end_chunk_; ++chunk) {
      if (call_.chunk_track[chunk] >= 0) keep_window(call_.chunk_start[chunk + 1], call_.chunk_track[chunk]);
    }
    keep_window(end_, target_);
  }

 private:
  // Returns inputs of row `t`, which may be up to K - 1 rows before the piece.
  template <bool kWhole>
  Lanes input(int64_t t, int64_t c, int count) const {
    if (t >= begin_) return rows_.template input<kWhole>(t, c, count);
    if (source_ < 0) return Lanes::zero();
    const int64_t place = rows_.past() + t - begin_;
    return load_part<kWhole>(rows_.window(source_) + place * rows_.channels() + c, count);
  }

  void convolve(int64_t from, int64_t to) const {
    for_each_vector(0, rows_.channels(), [&](auto kWhole, int64_t c, int count) {
      const Lanes bias = rows_.template bias<kWhole>(c, count);
      for (int64_t t = from; t < to; ++t) {
        Lanes sum = bias;
        for (int k = 0; k <= rows_.past(); ++k) {
          const Lanes x = input<kWhole>(t - rows_.past() + k, c, count);
          sum = Lanes::fused(x, rows_.template weight<kWhole>(k, c, count), sum);
        }
        rows_.template gate_and_keep<kWhole>(t, c, count, sum);
      }
    });
  }

  // Each input is read before it is overwritten: place k is read from a later place.
  void keep_window(int64_t end, int64_t slot) const {
    for (int k = 0; k < rows_.past(); ++k) {
      T* kept = rows_.window(slot) + k * rows_.channels();
      for_each_vector(0, rows_.channels(), [&](auto kWhole, int64_t c, int count) {
        store_part<kWhole>(kept + c, count, input<kWhole>(end - rows_.past() + k, c, count));
      });
    }
  }

  const ShortConvPrefill& call_;
  ShortConvRows<T, ShortConvPrefill> rows_;
  int first_chunk_, end_chunk_;
  int64_t begin_, end_, source_, target_;
};

template <typename T>
void run_short_conv_prefill(const ShortConvPrefill& call) {
  for (int piece = 0; piece < call.pieces; ++piece) ShortConvPiece<T>(call, piece).run();
}

void short_conv_decode(const ShortConvDecode* call) {
  call->kind == kBfloat16 ? run_short_conv_decode<uint16_t>(*call) : run_short_conv_decode<float>(*call);
}

void short_conv_prefill(const ShortConvPrefill* call) {
  call->kind == kBfloat16 ? run_short_conv_prefill<uint16_t>(*call) : run_short_conv_prefill<float>(*call);
}

}  // namespace
