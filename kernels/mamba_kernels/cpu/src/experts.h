// A mixture of experts: each expert's products over the rows that chose it. Included after linear.h.
//
// The products are those of `linear`, so a row has the same bits alone and among others, and on any number of threads;
// a row's parts are added in the order of its experts.
#pragma once
#include <cstring>

#include "elements.h"
#include "functions.h"
#include "interface.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

using Linear = void (*)(const LinearLayer*, const void* x, int64_t x_stride, int64_t rows, void* out);

constexpr int64_t kRowBytesPerChunk = 64 << 10;  // bytes of rows that a job copies, gates or adds

template <typename Body>
void for_each_row(int64_t rows, int64_t row_bytes, const Body& body) {
  const int64_t some = row_bytes < kRowBytesPerChunk ? kRowBytesPerChunk / row_bytes : 1;
  for_each_chunk(static_cast<int>((rows + some - 1) / some), [&](int chunk) {
    const int64_t end = (chunk + 1) * some < rows ? (chunk + 1) * some : rows;
    for (int64_t row = chunk * some; row < end; ++row) body(row);
  });
}

template <typename T>
class ExpertsCall {
 public:
  ExpertsCall(const Experts& call, Linear linear)
      : call_(call),
        linear_(linear),
        pairs_(call.rows * call.top_k),
        inputs_(call.gate_up[0].inputs),
        outputs_(call.down[0].outputs) {}

  void run() {
    sort();
    static thread_local Scratch gathered, parts;
    const int64_t end = first_[call_.experts];
    T* made = parts.get<T>((end + (call_.shared_down == nullptr ? 0 : call_.rows)) * outputs_);
    T* copied = gathered.get<T>(most_ * inputs_);
    const T* hidden = static_cast<const T*>(call_.hidden);
    for (int32_t expert = 0; expert < call_.experts; ++expert) {
      const int64_t* pairs = order_ + first_[expert];
      const int64_t rows = first_[expert + 1] - first_[expert];
      if (rows == 0) continue;
      for_each_row(rows, inputs_ * static_cast<int64_t>(sizeof(T)), [&](int64_t row) {
        std::memcpy(copied + row * inputs_, hidden + pairs[row] / call_.top_k * call_.hidden_stride,
                    static_cast<size_t>(inputs_) * sizeof(T));
      });
      one_expert(call_.gate_up[expert], call_.down[expert], copied, inputs_, rows, made + first_[expert] * outputs_);
    }
    const T* shared = nullptr;
    if (call_.shared_down != nullptr) {
      one_expert(*call_.shared_gate_up, *call_.shared_down, hidden, call_.hidden_stride, call_.rows,
                 made + end * outputs_);
      shared = made + end * outputs_;
    }
    const int64_t bytes = outputs_ * (call_.top_k + 2) * static_cast<int64_t>(sizeof(T));
    for_each_row(call_.rows, bytes, [&](int64_t row) { combine(row, made, shared); });
  }

 private:
  // Sorts pairs by expert, and within an expert by number: those of expert e are first_[e] .. first_[e + 1] of order_;
  // place_ is the inverse of order_.
  void sort() {
    static thread_local Scratch kept;
    first_ = kept.get<int64_t>(call_.experts + 1 + 2 * pairs_);
    order_ = first_ + call_.experts + 1;
    place_ = order_ + pairs_;
    std::memset(first_, 0, static_cast<size_t>(call_.experts + 1) * sizeof(int64_t));
    for (int64_t pair = 0; pair < pairs_; ++pair) {
      if (known(pair)) ++first_[call_.chosen[pair] + 1];
    }
    most_ = 0;
    for (int32_t expert = 0; expert < call_.experts; ++expert) {
      if (first_[expert + 1] > most_) most_ = first_[expert + 1];
      first_[expert + 1] += first_[expert];
    }
    for (int64_t pair = 0; pair < pairs_; ++pair) {
      if (!known(pair)) continue;
      place_[pair] = first_[call_.chosen[pair]]++;
      order_[place_[pair]] = pair;
    }
    for (int32_t expert = call_.experts; expert > 0; --expert) first_[expert] = first_[expert - 1];
    first_[0] = 0;
  }

  bool known(int64_t pair) const { return call_.chosen[pair] >= 0 && call_.chosen[pair] < call_.experts; }

  void one_expert(const LinearLayer& gate_up, const LinearLayer& down, const T* x, int64_t x_stride, int64_t rows,
                  T* out) const {
    static thread_local Scratch kept;
    const int64_t width = gate_up.outputs;
    T* inner = kept.get<T>(rows * width);
    linear_(&gate_up, x, x_stride, rows, inner);
    if (call_.gated) {
      const int64_t features = down.inputs;
      for_each_row(rows, width * static_cast<int64_t>(sizeof(T)), [&](int64_t row) {
        T* gate = inner + row * width;
        for (int64_t i = 0; i < features; i += kLanes) {
          const int count = static_cast<int>(features - i);
          store_some(gate + i, count, silu(load_some(gate + i, count)) * load_some(gate + features + i, count));
        }
      });
    }
    linear_(&down, inner, width, rows, out);
  }

  // Returns the weight of the shared expert.
  float of_shared(int64_t row) const {
    const T* hidden = static_cast<const T*>(call_.hidden) + row * call_.hidden_stride;
    Lanes sum = Lanes::zero();
    for_each_vector(0, inputs_, [&](auto kWhole, int64_t i, int count) {
      sum = Lanes::fused(load_part<kWhole>(hidden + i, count), load_part<kWhole>(call_.shared_gate + i, count), sum);
    });
    return 1.0f / (1.0f + std::exp(-sum.sum()));
  }

  void combine(int64_t row, const T* made, const T* shared) const {
    T* out = static_cast<T*>(call_.out) + row * outputs_;
    const float shared_weight = call_.shared_gate == nullptr ? 1.0f : of_shared(row);
    for (int64_t i = 0; i < outputs_; i += kLanes) {
      const int count = static_cast<int>(outputs_ - i);
      Lanes total = Lanes::zero();
      for (int64_t pair = row * call_.top_k; pair < (row + 1) * call_.top_k; ++pair) {
        if (!known(pair)) continue;
        const Lanes part = load_some(made + place_[pair] * outputs_ + i, count);
        total = Lanes::fused(Lanes::all(call_.weights[pair]), part, total);
      }
      if (shared != nullptr) {
        total = Lanes::fused(Lanes::all(shared_weight), load_some(shared + row * outputs_ + i, count), total);
      }
      store_some(out + i, count, total);
    }
  }

  const Experts& call_;
  Linear linear_;
  int64_t pairs_, inputs_, outputs_;
  int64_t most_ = 0;  // largest number of rows of an expert
  int64_t* first_ = nullptr;
  int64_t* order_ = nullptr;
  int64_t* place_ = nullptr;
};

template <Linear kLinear>
void moe(const Experts* call) {
  if (call->kind == kBfloat16) {
    ExpertsCall<uint16_t>(*call, kLinear).run();
  } else {
    ExpertsCall<float>(*call, kLinear).run();
  }
}

}  // namespace
