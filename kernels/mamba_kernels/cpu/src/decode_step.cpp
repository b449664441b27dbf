#include "decode_step.h"

#include <algorithm>
#include <cstring>

#include "step_rows.h"

namespace {

int64_t bytes_of_norm(const RmsNorm& norm) { return norm.width * (norm.kind == kFloat32 ? 4 : 2); }

// The rows of a head, whose stream begins with pairs of a token and a hidden state.
class HeadRows {
 public:
  HeadRows(const KernelTable& kernels, const DraftHead& head, const DecodeStep& step)
      : kernels_(kernels), head_(head), step_(step), rows_(kernels, step, values()) {}

  Step& rows() { return rows_; }

  // Sets the stream. `hidden_of(row)`: the hidden state of the token before a row's token.
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

// Lets the head read the tokens of a step, whose normed hidden states are `hidden`: their keys and values, and the
// hidden states that later steps go on from.
void follow(const KernelTable& kernels, const DecodeStep& step, const int32_t* tokens, const char* hidden) {
  const DraftHead& head = *step.head;
  DecodeStep own = head.step;
  own.integers = step.integers;
  own.integers_stride = step.integers_stride;
  own.cos = step.cos;
  own.sin = step.sin;
  own.rope_half = step.rope_half;
  own.rows = step.rows;
  HeadRows rows(kernels, head, own);
  char* kept = static_cast<char*>(head.kept);
  const int64_t bytes = bytes_of_norm(step.norm), page_size = own.blocks[0].attention.page_size;
  const int32_t* preceding = rows.rows().field(kPreceding);
  rows.begin(tokens, [&](int64_t row) {
    return preceding[row] < 0 ? hidden + (-1 - preceding[row]) * bytes : kept + preceding[row] * bytes;
  });
  rows.rows().write_first_keys();
  for (int64_t row = 0; row < step.rows; ++row) {
    const char* state = hidden + row * bytes;
    std::memcpy(kept + rows.rows().field(kLeftAt)[row] * bytes, state, static_cast<size_t>(bytes));
    const int64_t key_row = rows.rows().field(kKeyRow)[row];
    if (key_row % page_size < page_size - 1) continue;
    char* tail = static_cast<char*>(head.tails) + key_row / page_size * head.tails_stride * (bytes / step.norm.width);
    std::memcpy(tail, state, static_cast<size_t>(bytes));
  }
}

}  // namespace

void decode_step(const KernelTable& kernels, const DecodeStep& step, void* out) {
  thread_local Values values;
  Step rows(kernels, step, values);
  rows.run(out);
  if (step.head != nullptr) follow(kernels, step, rows.tokens(), static_cast<const char*>(out));
}

void draft(const KernelTable& kernels, const DraftHead& head, const DraftTurns& turns) {
  static thread_local Scratch of_states, of_logits, of_places, of_finite;
  const int64_t most = turns.counts[0], bytes = bytes_of_norm(head.step.norm);
  const int64_t vocabulary = head.output->outputs;
  char* states = of_states.get<char>(most * bytes);
  char* logits = of_logits.get<char>(most * vocabulary * 4);
  int64_t* best = of_places.get<int64_t>(most);
  uint8_t* finite = of_finite.get<uint8_t>(most);
  const char* kept = static_cast<const char*>(head.kept);
  const int32_t* tokens = turns.last_token;
  DecodeStep step = head.step;
  for (int32_t turn = 0; turn < turns.turns; ++turn) {
    const int32_t count = step.rows = turns.counts[turn];
    HeadRows rows(kernels, head, step);
    rows.begin(tokens, [&](int64_t row) { return turn == 0 ? kept + turns.place[row] * bytes : states + row * bytes; });
    rows.rows().run_blocks(states);
    kernels.linear(head.output, states, head.output->inputs, count, logits);
    kernels.largest(logits, count, vocabulary, head.output->kind, best, finite);
    int32_t* drafted = turns.drafted + (step.integers - head.step.integers);
    for (int32_t row = 0; row < count; ++row) drafted[row] = static_cast<int32_t>(best[row]);
    tokens = drafted;
    step.integers += count;
    step.cos += count * step.rope_half;
    step.sin += count * step.rope_half;
  }
}
