// The layers of a step in which all rows decode, drafts included: see `decode_step.h`. Included by
// decode_step.cpp alone.
#pragma once
#include <cstring>
#include <type_traits>

#include "bfloat16.h"
#include "interface.h"
#include "route.h"
#include "scratch.h"

namespace {

// Rows of `integers` by their numbers; the first kSlots rows are slots.
enum Field {
  kSource, kTarget, kTrack, kNoise, kTableRow, kContextLen, kKeyRow, kLane, kWaiting, kWrites, kSlots = kTrack + 1
};

int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// The values of a step, in memory of the calling thread that the next step uses again.
struct Values {
  Scratch hidden, normed, inner, gated, added, beside, slots, tokens, wide, scores, chosen, weights, raw, turns, noise;
};

class Step {
 public:
  Step(const KernelTable& kernels, const DecodeStep& step, Values& values)
      : kernels_(kernels), step_(step), values_(values) {
    const int64_t rows = step.rows, width = step.norm.width, bytes = bytes_of(step.norm.kind);
    int64_t inner = 0, gated = 0;
    for (int32_t i = 0; i < step.block_count; ++i) {
      const DecodeBlock& block = step.blocks[i];
      if (block.in_proj != nullptr) {
        inner = larger(inner, block.in_proj->outputs);
        gated = larger(gated, block.out_proj->inputs);
      }
      if (block.attention_in_proj != nullptr) {
        inner = larger(inner, block.attention_in_proj->outputs);
        gated = larger(gated, block.attention_out_proj->inputs);
      }
      if (block.shared_in_proj != nullptr) inner = larger(inner, block.shared_in_proj->outputs);
    }
    hidden_ = values.hidden.get<char>(rows * width * bytes_of(step.norm.x_kind));
    normed_ = values.normed.get<char>(rows * width * bytes);
    inner_ = values.inner.get<char>(rows * inner * bytes);
    gated_ = values.gated.get<char>(rows * gated * bytes);
    added_ = values.added.get<char>(rows * width * bytes);
    beside_ = values.beside.get<char>(rows * width * bytes);
    slots_ = values.slots.get<int64_t>(rows * kSlots);
    tokens_ = values.tokens.get<int32_t>(rows);
  }

  int64_t rows() const { return step_.rows; }
  int64_t row_bytes() const { return step_.norm.width * bytes_of(step_.norm.kind); }
  const int32_t* field(Field which) const { return step_.integers + which * step_.integers_stride; }
  const int32_t* tokens() const { return tokens_; }

  // Returns the residual stream, for a caller that sets its rows and then calls `run_blocks`.
  char* stream() { return hidden_; }

  void run(void* out) {
    read_integers();
    kernels_.packed_rows(step_.embedding, tokens_, step_.rows, hidden_, step_.norm.x_kind);
    if (step_.embedding_scale != 1.0f) {
      kernels_.scale(hidden_, step_.embedding_scale, step_.rows * step_.norm.width, step_.norm.x_kind);
    }
    run_blocks(out);
  }

  void run_blocks(void* out) {
    for (int32_t i = 0; i < step_.block_count; ++i) {
      const DecodeBlock& block = step_.blocks[i];
      take_rows(block, i > 0);
      switch (block.kind) {
        case kMambaBlock: recurrent(block, block.mamba, kernels_.mamba_decode); break;
        case kDeltaBlock: recurrent(block, block.delta, kernels_.delta_decode); break;
        case kShortConvBlock: recurrent(block, block.short_conv, kernels_.short_conv_decode); break;
        case kAttentionBlock: attention(block, added_); break;
        case kParallelBlock:
          recurrent(block, block.mamba, kernels_.mamba_decode);
          attention(block, beside_);
          kernels_.add(added_, beside_, step_.rows * step_.norm.width, step_.norm.kind);
          break;
        case kMoeBlock: moe(block); break;
        default: mlp(block);
      }
      if (block.result_norm.weight != nullptr) norm_in_place(block.result_norm, added_, step_.rows);
    }
    norm(step_.norm, step_.block_count > 0, out);
  }

  // Computes and writes the keys and values of the first block for the rows in the stream, without the
  // attention.
  void write_first_keys() {
    const DecodeBlock& block = step_.blocks[0];
    take_rows(block, false);
    project_heads(block);
  }

  static int64_t bytes_of(int32_t kind) { return kind == kFloat32 ? 4 : 2; }

 private:

  void read_integers() {
    for (int32_t row = 0; row < step_.rows; ++row) {
      for (int which = kSource; which < kSlots; ++which) {
        slots_[which * step_.rows + row] = field(static_cast<Field>(which))[row];
      }
    }
    const int32_t drafts = step_.replay == nullptr ? 0 : step_.replay->drafts, own = step_.rows - drafts;
    for (int32_t row = 0; row < own; ++row) tokens_[row] = step_.last_token[field(kTableRow)[row]];
    for (int32_t i = 0; i < drafts; ++i) tokens_[own + i] = step_.replay->draft_token[i];
  }

  void norm(RmsNorm call, bool added, void* out) {
    call.x = hidden_;
    call.x_stride = step_.norm.width;
    call.added = added ? added_ : nullptr;
    call.out = out;
    call.rows = step_.rows;
    call.x_kind = step_.norm.x_kind;
    kernels_.rms_norm(&call);
  }

  // Adds the last result to the residual stream, and sets the rows that the block's mixer takes.
  void take_rows(const DecodeBlock& block, bool added) {
    if (block.norm.weight != nullptr) {
      norm(block.norm, added, normed_);
      mixed_ = normed_;
      return;
    }
    if (added) kernels_.add(hidden_, added_, step_.rows * step_.norm.width, step_.norm.kind);
    mixed_ = hidden_;
  }

  void norm_in_place(RmsNorm call, char* x, int64_t rows) {
    call.x = call.out = x;
    call.x_stride = call.width;
    call.added = nullptr;
    call.rows = rows;
    call.x_kind = call.kind;
    kernels_.rms_norm(&call);
  }

  void product(const LinearLayer* layer, const void* x, void* out) {
    if (!is_changed(layer->changes)) return kernels_.linear(layer, x, layer->inputs, step_.rows, out);
    // The activation follows the changes.
    kernels_.linear(layer->changes->plain, x, layer->inputs, step_.rows, out);
    kernels_.change_rows(layer->changes, step_.places, x, layer->inputs, step_.rows, out, layer->activation);
  }

  // Returns whether the adapter of any row changes the product.
  bool is_changed(const AdapterChanges* changes) const {
    if (changes == nullptr || step_.places == nullptr) return false;
    for (int32_t row = 0; row < step_.rows; ++row) {
      if (step_.places[row] >= 0 && changes->ranks[step_.places[row]] > 0) return true;
    }
    return false;
  }

  // Computes a recurrent mixer between its projections by `kernel`. `call` has the fields that do not change
  // from step to step.
  template <typename Call>
  void recurrent(const DecodeBlock& block, Call call, void (*kernel)(const Call*)) {
    product(block.in_proj, mixed_, inner_);
    if (step_.replay == nullptr) {
      name_rows(block, call, inner_, slots_, step_.rows, field(kNoise), 0);
      if (step_.has_ring != 0) name_lanes(call);
      kernel(&call);
    } else {
      absorb(block, call, kernel);
      const int64_t own = step_.rows - step_.replay->drafts;
      name_rows(block, call, inner_, slots_, own, field(kNoise), 0);
      kernel(&call);
      try_drafts(block, call, kernel, own);
    }
    product(block.out_proj, gated_, added_);
  }

  // Sets the fields of a mixer's call for `rows` rows, whose results begin at row `first`. `slots` holds the
  // slots of their states, [kSlots, rows of the step].
  template <typename Call>
  void name_rows(const DecodeBlock& block, Call& call, const void* projected, const int64_t* slots, int64_t rows,
                 const int32_t* noise, int64_t first) {
    call.projected = projected;
    call.projected_stride = block.in_proj->outputs;
    call.source = slots + kSource * step_.rows;
    call.target = slots + kTarget * step_.rows;
    call.track = slots + kTrack * step_.rows;
    call.out = gated_ + first * block.out_proj->inputs * bytes_of(step_.norm.kind);
    call.rows = static_cast<int32_t>(rows);
    set_noise(call, noise);
  }
  static void set_noise(ShortConvDecode&, const int32_t*) {}
  template <typename Call>
  static void set_noise(Call& call, const int32_t* noise) {
    call.noise = reinterpret_cast<const uint32_t*>(noise);
  }

  void name_lanes(ShortConvDecode&) const {}
  template <typename Call>
  void name_lanes(Call& call) const {
    call.ring.lane = field(kLane);
    call.ring.waiting = field(kWaiting);
    call.ring.writes = field(kWrites);
  }

  // Folds accepted inputs, which wait in the ring, into live slots; the step's own rows overwrite the results.
  template <typename Call>
  void absorb(const DecodeBlock& block, Call call, void (*kernel)(const Call*)) {
    const Replay& replay = *step_.replay;
    if (replay.absorbing == 0) return;
    const int64_t bytes = block.in_proj->outputs * bytes_of(step_.norm.kind);
    int64_t* slots = values_.turns.get<int64_t>(step_.rows * kSlots);
    int32_t* noise = values_.noise.get<int32_t>(step_.rows);
    char* raw = values_.raw.get<char>(replay.absorbing * bytes);
    for (int32_t turn = 0;; ++turn) {
      int32_t count = 0;
      for (int32_t i = 0; i < replay.absorbing; ++i) {
        if (replay.absorbed_count[i] <= turn) continue;
        set_slots(slots, count, replay.absorbed_slot[i]);
        noise[count] = replay.absorbed_noise[i * replay.noise_stride + turn];
        std::memcpy(raw + count++ * bytes, input_of(block, replay.absorbed_lane[i], turn), static_cast<size_t>(bytes));
      }
      if (count == 0) return;
      name_rows(block, call, raw, slots, count, noise, 0);
      kernel(&call);
    }
  }

  // Returns the place of a raw input in the layer's ring.
  char* input_of(const DecodeBlock& block, int64_t lane, int64_t turn) const {
    const int64_t bytes = block.in_proj->outputs * bytes_of(step_.norm.kind);
    return static_cast<char*>(block.ring) + (lane * step_.replay->lane_inputs + turn) * bytes;
  }

  // Computes the drafts behind the step's `own` rows on copies of live slots, and keeps their raw inputs.
  template <typename Call>
  void try_drafts(const DecodeBlock& block, Call call, void (*kernel)(const Call*), int64_t own) {
    const Replay& replay = *step_.replay;
    if (replay.drafts == 0) return;
    const int64_t bytes = block.in_proj->outputs * bytes_of(step_.norm.kind);
    int64_t* slots = values_.turns.get<int64_t>(step_.rows * kSlots);
    for (int32_t i = 0; i < replay.drafting; ++i) {
      copy_state(call, replay.draft_slot[i], i + 1);
      set_slots(slots, i, i + 1);
    }
    move_to_copies(call);
    int64_t first = own;
    for (int32_t turn = 0; first < step_.rows; ++turn) {
      int32_t count = 0;
      for (; count < replay.drafting && replay.draft_len[count] > turn; ++count) {
        std::memcpy(input_of(block, replay.draft_lane[count], turn), inner_ + (first + count) * bytes,
                    static_cast<size_t>(bytes));
      }
      name_rows(block, call, inner_ + first * bytes, slots, count, field(kNoise) + first, first);
      kernel(&call);
      first += count;
    }
  }

  void set_slots(int64_t* slots, int32_t row, int64_t slot) const {
    slots[kSource * step_.rows + row] = slots[kTarget * step_.rows + row] = slot;
    slots[kTrack * step_.rows + row] = -1;
  }

  // Copies window and state of a live slot, both of which are dense.
  template <typename Call>
  void copy_state(const Call& call, int64_t slot, int64_t copy) const {
    const Replay& replay = *step_.replay;
    copy_part(call.window, call.window_stride, slot, replay.window, replay.window_stride, copy, bytes_of(call.kind));
    if constexpr (!std::is_same_v<Call, ShortConvDecode>) {
      copy_part(call.state, call.state_stride, slot, replay.state, replay.state_stride, copy,
                bytes_of(call.state_kind));
    }
  }
  static void copy_part(const void* from, int64_t from_stride, int64_t slot, void* to, int64_t to_stride, int64_t copy,
                        int64_t element) {
    std::memcpy(static_cast<char*>(to) + copy * to_stride * element,
                static_cast<const char*>(from) + slot * from_stride * element, static_cast<size_t>(to_stride * element));
  }
  template <typename Call>
  void move_to_copies(Call& call) const {
    call.window = step_.replay->window;
    call.window_stride = step_.replay->window_stride;
    if constexpr (!std::is_same_v<Call, ShortConvDecode>) {
      call.state = step_.replay->state;
      call.state_stride = step_.replay->state_stride;
    }
  }

  void attention(const DecodeBlock& block, void* out) {
    project_heads(block);
    PagedDecode call = block.attention;
    call.query = inner_;
    call.query_stride = block.attention_in_proj->outputs;
    call.page_table = step_.page_table;
    call.page_table_stride = step_.page_table_stride;
    call.table_row = field(kTableRow);
    call.context_len = field(kContextLen);
    call.out = gated_;
    call.rows = step_.rows;
    kernels_.paged_decode(&call);
    if (block.output_gate != 0) gate(block);
    product(block.attention_out_proj, gated_, out);
  }

  // Computes queries, keys and values, and writes the keys and values to their pages.
  void project_heads(const DecodeBlock& block) {
    product(block.attention_in_proj, mixed_, inner_);
    if (block.query_norm.weight != nullptr) norm_heads(block);
    if (step_.rope_half > 0) turn(block);
    write_keys(block);
  }

  // Norms queries and keys in place; keys follow queries.
  void norm_heads(const DecodeBlock& block) {
    const PagedDecode& at = block.attention;
    const int64_t queries = int64_t{at.heads} * at.head_dim, keys = int64_t{at.kv_heads} * at.head_dim;
    const int64_t bytes = bytes_of(at.kind);
    for (int32_t row = 0; row < step_.rows; ++row) {
      char* x = inner_ + row * block.attention_in_proj->outputs * bytes;
      norm_in_place(block.query_norm, x, queries / block.query_norm.width);
      norm_in_place(block.key_norm, x + queries * bytes, keys / block.key_norm.width);
    }
  }

  // Gates the result of attention; the gate is the end of each row.
  void gate(const DecodeBlock& block) {
    const PagedDecode& at = block.attention;
    const int64_t width = int64_t{at.heads} * at.head_dim, stride = block.attention_in_proj->outputs;
    const SigmoidGate call{gated_, inner_ + (stride - width) * bytes_of(at.kind), stride, step_.rows, width, at.kind};
    kernels_.gate(&call);
  }

  // Rotates queries and keys in place; keys follow queries.
  void turn(const DecodeBlock& block) {
    const PagedDecode& at = block.attention;
    const Rope call{inner_, block.attention_in_proj->outputs, step_.cos, step_.sin, step_.rows, at.heads + at.kv_heads,
                    at.head_dim, step_.rope_half, at.kind};
    kernels_.rope(&call);
  }

  // Writes keys and values, which follow the queries of each row, to their pages.
  void write_keys(const DecodeBlock& block) {
    const PagedDecode& call = block.attention;
    if (call.scales != nullptr) return round_keys(block);
    const int64_t bytes = bytes_of(call.kind);
    const int64_t queries = int64_t{call.heads} * call.head_dim, keys = int64_t{call.kv_heads} * call.head_dim;
    // Pages are written before they are read: the caller owns them, as it owns the states.
    char* pages = static_cast<char*>(const_cast<void*>(call.kv));
    for (int32_t row = 0; row < step_.rows; ++row) {
      const int32_t key_row = field(kKeyRow)[row];
      char* key = pages + (key_row / call.page_size * call.page_stride + key_row % call.page_size * keys) * bytes;
      const char* from = inner_ + (row * block.attention_in_proj->outputs + queries) * bytes;
      std::memcpy(key, from, static_cast<size_t>(keys * bytes));
      std::memcpy(key + call.value_offset * bytes, from + keys * bytes, static_cast<size_t>(keys * bytes));
    }
  }

  // Writes keys and values to pages of FP8.
  void round_keys(const DecodeBlock& block) {
    const PagedDecode& at = block.attention;
    const int64_t bytes = bytes_of(at.kind), stride = block.attention_in_proj->outputs;
    const int64_t queries = int64_t{at.heads} * at.head_dim, keys = int64_t{at.kv_heads} * at.head_dim;
    const char* first = inner_ + queries * bytes;
    // As for copies of rows, the caller owns the pages.
    const KvWrite call{first, stride, first + keys * bytes, stride,
                       static_cast<uint8_t*>(const_cast<void*>(at.kv)), at.page_stride, at.value_offset,
                       const_cast<uint8_t*>(at.scales), at.scale_stride, at.scale_offset, field(kKeyRow), step_.rows,
                       at.kv_heads, at.head_dim, at.page_size, at.kind};
    kernels_.kv_write(&call);
  }

  void mlp(const DecodeBlock& block) {
    product(block.in_proj, mixed_, inner_);
    if (block.gate_proj == nullptr) return product(block.out_proj, inner_, added_);
    product(block.gate_proj, mixed_, gated_);
    kernels_.multiply(gated_, inner_, step_.rows * block.gate_proj->outputs, step_.norm.kind);
    product(block.out_proj, gated_, added_);
  }

  void moe(const DecodeBlock& block) {
    const Router& router = block.router;
    const int64_t pairs = int64_t{step_.rows} * router.top_k;
    float* scores = values_.scores.get<float>(int64_t{step_.rows} * router.experts);
    int32_t* chosen = values_.chosen.get<int32_t>(pairs);
    float* weights = values_.weights.get<float>(pairs);
    kernels_.linear(router.linear, widened_rows(), step_.norm.width, step_.rows, scores);
    route(router, scores, step_.rows, chosen, weights);
    Experts call = block.experts;
    call.hidden = mixed_;
    call.hidden_stride = step_.norm.width;
    call.chosen = chosen;
    call.weights = weights;
    call.out = added_;
    call.rows = step_.rows;
    call.top_k = router.top_k;
    if (block.in_proj == nullptr) return kernels_.moe(&call);
    product(block.in_proj, mixed_, inner_);
    call.hidden = inner_;
    call.hidden_stride = block.in_proj->outputs;
    call.out = gated_;
    kernels_.moe(&call);
    product(block.out_proj, gated_, added_);
    if (block.shared_in_proj == nullptr) return;
    product(block.shared_in_proj, mixed_, inner_);
    product(block.shared_out_proj, inner_, beside_);
    kernels_.add(added_, beside_, step_.rows * step_.norm.width, step_.norm.kind);
  }

  // Returns the rows that the block's mixer takes, as float32.
  const void* widened_rows() {
    if (step_.norm.kind == kFloat32) return mixed_;
    const int64_t count = step_.rows * step_.norm.width;
    const auto* narrow = reinterpret_cast<const uint16_t*>(mixed_);
    float* wide = values_.wide.get<float>(count);
    for (int64_t i = 0; i < count; ++i) wide[i] = widened(narrow[i]);
    return wide;
  }

  const KernelTable& kernels_;
  const DecodeStep& step_;
  Values& values_;
  char *hidden_, *normed_, *inner_, *gated_, *added_, *beside_;
  const char* mixed_ = nullptr;  // rows that the block's mixer takes
  int64_t* slots_;
  int32_t* tokens_;
};

}  // namespace
