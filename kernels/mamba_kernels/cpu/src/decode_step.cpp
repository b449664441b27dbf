#include "decode_step.h"

#include <algorithm>
#include <cstring>

#include "step_rows.h"

namespace {

int64_t bytes_of_norm(const RmsNorm& norm) { return norm.width * (norm.kind == kFloat32 ? 4 : 2); }

// The rows of a step of a head, whose residual stream begins with join(token, hidden state) for each row.
class HeadRows {
 public:
  HeadRows(const KernelTable& kernels, const DraftHead& head, const DecodeStep& step)
      : kernels_(kernels), head_(head), step_(step), rows_(kernels, step, values()) {}

  Step& rows() { return rows_; }

  // Sets the first rows of the stream. `hidden_of(row)`: the hidden state of the token before the row's
  // token.
  template <typename HiddenOf>
  void begin(const int32_t* tokens, HiddenOf hidden_of) {
    static thread_local Scratch embedded, hidden, normed, joined;
    const int64_t count = step_.rows, bytes = bytes_of_norm(head_.hidden_norm);
    const int64_t embedding_bytes = bytes_of_norm(head_.embedding_norm);
    char* of_tokens = embedded.get<char>(count * embedding_bytes);
    char* before = hidden.get<char>(count * bytes);
    char* part = normed.get<char>(count * std::max(bytes, embedding_bytes));
    char* both = joined.get<char>(count * (embedding_bytes + bytes));
    kernels_.packed_rows(step_.embedding, tokens, count, of_tokens, head_.embedding_norm.kind);
    for (int64_t row = 0; row < count; ++row) {
      std::memcpy(before + row * bytes, hidden_of(row), static_cast<size_t>(bytes));
    }
    norm_into(head_.embedding_norm, of_tokens, part, both, 0, embedding_bytes);
    norm_into(head_.hidden_norm, before, part, both, embedding_bytes, bytes);
    kernels_.linear(head_.join, both, head_.join->inputs, count, rows_.stream());
  }

 private:
  static Values& values() {
    static thread_local Values values;
    return values;
  }

  // Norms rows and writes them to their part of the joined rows.
  void norm_into(RmsNorm call, char* x, char* part, char* both, int64_t offset, int64_t bytes) const {
    call.x = x;
    call.x_stride = call.width;
    call.added = nullptr;
    call.out = part;
    call.rows = step_.rows;
    call.x_kind = call.kind;
    kernels_.rms_norm(&call);
    const int64_t stride = bytes_of_norm(head_.embedding_norm) + bytes_of_norm(head_.hidden_norm);
    for (int64_t row = 0; row < step_.rows; ++row) {
      std::memcpy(both + row * stride + offset, part + row * bytes, static_cast<size_t>(bytes));
    }
  }

  const KernelTable& kernels_;
  const DraftHead& head_;
  const DecodeStep& step_;
  Step rows_;
};

// Where each row of a step finds the hidden state of the token before its own, and where it leaves its own.
class Followed {
 public:
  explicit Followed(const DecodeStep& step) : replay_(step.replay), lane_rows_(step.head->lane_rows), rows_(step.rows) {
    static thread_local Scratch places;
    before_ = places.get<int64_t>(2 * rows_);
    left_ = before_ + rows_;
    const int32_t* table_row = step.integers + kTableRow * step.integers_stride;
    const int32_t own = step.rows - (replay_ == nullptr ? 0 : replay_->drafts);
    for (int32_t row = 0; row < own; ++row) before_[row] = left_[row] = table_row[row];
    if (replay_ == nullptr) return;
    // A live slot belongs to one sequence.
    const int32_t* slot = step.integers + kTarget * step.integers_stride;
    for (int32_t i = 0; i < replay_->absorbing; ++i) {
      const int64_t row = std::find(slot, slot + own, replay_->absorbed_slot[i]) - slot;
      before_[row] = of_lane(replay_->absorbed_lane[i], replay_->absorbed_count[i] - 1);
    }
    int32_t first = own, count_before = 0;
    for (int32_t turn = 0; first < rows_; ++turn) {
      int32_t count = 0;
      for (; count < replay_->drafting && replay_->draft_len[count] > turn; ++count) {
        const int64_t last = turn > 0 ? first - count_before + count
                                      : std::find(slot, slot + own, replay_->draft_slot[count]) - slot;
        before_[first + count] = -1 - last;
        left_[first + count] = of_lane(replay_->draft_lane[count], turn);
      }
      first += count;
      count_before = count;
    }
  }

  // Returns the row of `kept` with the hidden state of the token before; -1 - r = it is row r of this step.
  int64_t before(int64_t row) const { return before_[row]; }
  // Returns the row of `kept` in which a row of the step leaves its hidden state.
  int64_t left(int64_t row) const { return left_[row]; }

 private:
  int64_t of_lane(int64_t lane, int64_t input) const { return lane_rows_ + lane * replay_->lane_inputs + input; }

  const Replay* replay_;
  int64_t lane_rows_;
  int32_t rows_;
  int64_t *before_, *left_;
};

// Keeps the hidden states of a step, from which later steps continue. `left(row)`: the row of `kept` for a
// row.
template <typename Left>
void keep_states(const DecodeStep& step, const char* hidden, Left left) {
  const DraftHead& head = *step.head;
  char* kept = static_cast<char*>(head.kept);
  const int64_t bytes = bytes_of_norm(step.norm), page_size = head.step.blocks[0].attention.page_size;
  const int32_t* key_rows = step.integers + kKeyRow * step.integers_stride;
  for (int64_t row = 0; row < step.rows; ++row) {
    const char* state = hidden + row * bytes;
    std::memcpy(kept + left(row) * bytes, state, static_cast<size_t>(bytes));
    const int64_t key_row = key_rows[row];
    if (key_row % page_size < page_size - 1) continue;
    char* tail = static_cast<char*>(head.tails) + key_row / page_size * head.tails_stride * (bytes / step.norm.width);
    std::memcpy(tail, state, static_cast<size_t>(bytes));
  }
}

// Writes zeros as the head's keys and values for the tokens of a step without drafts, and keeps their hidden
// states.
void pass_over(const DecodeStep& step, const char* hidden) {
  const PagedDecode& call = step.head->step.blocks[0].attention;
  const int64_t width = call.scales != nullptr ? 1 : call.kind == kFloat32 ? 4 : 2;
  const int64_t bytes = width * call.kv_heads * call.head_dim;
  char* pages = static_cast<char*>(const_cast<void*>(call.kv));
  const int32_t* key_rows = step.integers + kKeyRow * step.integers_stride;
  for (int64_t row = 0; row < step.rows; ++row) {
    const int64_t page = key_rows[row] / call.page_size, offset = key_rows[row] % call.page_size;
    char* key = pages + page * call.page_stride * width + offset * bytes;
    std::memset(key, 0, static_cast<size_t>(bytes));
    std::memset(key + call.value_offset * width, 0, static_cast<size_t>(bytes));
    if (call.scales == nullptr) continue;
    // Any scale that is finite will do.
    uint8_t* scale = const_cast<uint8_t*>(call.scales) + page * call.scale_stride + offset * call.kv_heads;
    std::memset(scale, 0, static_cast<size_t>(call.kv_heads));
    std::memset(scale + call.scale_offset, 0, static_cast<size_t>(call.kv_heads));
  }
  const int32_t* table_row = step.integers + kTableRow * step.integers_stride;
  keep_states(step, hidden, [&](int64_t row) { return table_row[row]; });
}

// Lets the head read the tokens of a step, whose normed hidden states are `hidden`: writes the head's keys
// and values, and keeps the hidden states from which later steps continue.
void follow(const KernelTable& kernels, const DecodeStep& step, const int32_t* tokens, const char* hidden) {
  const DraftHead& head = *step.head;
  DecodeStep own = head.step;
  own.integers = step.integers;
  own.integers_stride = step.integers_stride;
  own.cos = step.cos;
  own.sin = step.sin;
  own.rows = step.rows;
  HeadRows rows(kernels, head, own);
  const Followed places(step);
  const char* kept = static_cast<const char*>(head.kept);
  const int64_t bytes = bytes_of_norm(step.norm);
  rows.begin(tokens, [&](int64_t row) {
    const int64_t before = places.before(row);
    return before < 0 ? hidden + (-1 - before) * bytes : kept + before * bytes;
  });
  rows.rows().write_first_keys();
  keep_states(step, hidden, [&](int64_t row) { return places.left(row); });
}

}  // namespace

void decode_step(const KernelTable& kernels, const DecodeStep& step, void* out) {
  thread_local Values values;
  Step rows(kernels, step, values);
  rows.run(out);
  if (step.head == nullptr) return;
  const char* hidden = static_cast<const char*>(out);
  step.head_passes ? pass_over(step, hidden) : follow(kernels, step, rows.tokens(), hidden);
}

void draft(const KernelTable& kernels, const DraftHead& head, const DraftTurns& turns) {
  static thread_local Scratch of_states, of_logits, of_places, of_finite, of_integers, of_tokens;
  const int64_t sequences = turns.sequences, bytes = bytes_of_norm(head.step.norm), page_size =
      head.step.blocks[0].attention.page_size, vocabulary = head.output->outputs;
  char* states = of_states.get<char>(sequences * bytes);
  char* logits = of_logits.get<char>(sequences * vocabulary * 4);
  int64_t* best = of_places.get<int64_t>(sequences);
  uint8_t* finite = of_finite.get<uint8_t>(sequences);
  int32_t* integers = of_integers.get<int32_t>(sequences * (kKeyRow + 1));
  int32_t* tokens = of_tokens.get<int32_t>(sequences);
  std::copy(turns.last_token, turns.last_token + sequences, tokens);
  const char* kept = static_cast<const char*>(head.kept);
  DecodeStep step = head.step;
  step.integers = integers;
  step.integers_stride = sequences;
  for (int32_t turn = 0; turn < turns.most; ++turn) {
    int32_t count = 0;
    for (; count < sequences && turns.count[count] > turn; ++count) {
      const int64_t position = turns.depth[count] + turn, row = turns.table_row[count];
      const int32_t page = step.page_table[row * step.page_table_stride + position / page_size];
      integers[kTableRow * sequences + count] = static_cast<int32_t>(row);
      integers[kContextLen * sequences + count] = static_cast<int32_t>(position + 1);
      integers[kKeyRow * sequences + count] = static_cast<int32_t>(page * page_size + position % page_size);
    }
    step.rows = count;
    HeadRows rows(kernels, head, step);
    rows.begin(tokens, [&](int64_t row) { return turn == 0 ? kept + turns.place[row] * bytes : states + row * bytes; });
    rows.rows().run_blocks(states);
    kernels.linear(head.output, states, head.output->inputs, count, logits);
    kernels.largest(logits, count, vocabulary, head.output->kind, best, finite);
    for (int32_t row = 0; row < count; ++row) {
      tokens[row] = turns.drafted[row * turns.most + turn] = static_cast<int32_t>(best[row]);
    }
    if (step.rope_half == 0) continue;
    step.cos += count * step.rope_half;
    step.sin += count * step.rope_half;
  }
}
