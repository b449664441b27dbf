// The plain C interface between Python (ctypes) and the kernels. Pointers are to memory that the caller owns
// and keeps for the time of the call; strides are in elements. Keep in step with ../structures.py.
#pragma once
#include <cstdint>

enum Kind : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };
// How a layer's weights are stored: as `kind`, or as int8 with one float16 scale for 32 inputs of an output.
enum Packing : int32_t { kWhole = 0, kInt8 = 1 };
enum Activation : int32_t { kIdentity = 0, kRelu = 1, kReluSquared = 2, kSilu = 3 };

// y = activation(x W^T + b) with weights packed by pack_linear.
struct LinearLayer {
  const void* packed;
  const void* bias;  // [outputs] of `kind`, or null
  int64_t inputs;
  int64_t outputs;
  int32_t kind;  // of whole weights, bias, x and y
  int32_t packing;
  int32_t activation;
};

// What a Mamba2 mixer has between its projections.
struct Mixer {
  const float* conv_weight;  // [taps, channels]
  const float* conv_bias;    // [channels] or null
  const float* rate;         // [heads] A, negative
  const float* skip;         // [heads] D
  const float* step_bias;    // [heads]
  const void* norm_weight;   // [inner] of the rows' kind, or null: the gate alone
  float step_min;
  float step_max;
  float norm_eps;
  int32_t heads;
  int32_t head_dim;
  int32_t groups;
  int32_t state_size;
  int32_t taps;
  int32_t norm_groups;
};

// One token for each of `rows` sequences: convolution, recurrence, gate and norm.
struct MambaDecode {
  const Mixer* mixer;
  const void* projected;  // [rows, inner | inner + 2 * groups * state_size | heads] of `kind`
  int64_t projected_stride;
  void* window;  // [slabs, taps - 1, channels] of `kind`
  int64_t window_stride;
  void* state;  // [slabs, heads, head_dim, state_size] of `state_kind`
  int64_t state_stride;
  const int64_t* source;  // [rows] slot read from; -1 = the zero state
  const int64_t* target;  // [rows] slot written to
  const int64_t* track;   // [rows] second slot written to, or -1
  const uint32_t* noise;  // [rows] what a float16 state is rounded by
  void* out;              // [rows, inner] of `kind`
  int32_t rows;
  int32_t kind;
  int32_t state_kind;
};

// The same for the pieces of prompts, one after another in the rows, cut into chunks.
struct MambaPrefill {
  const Mixer* mixer;
  const void* projected;  // as of MambaDecode
  int64_t projected_stride;
  void* window;
  int64_t window_stride;
  void* state;
  int64_t state_stride;
  const int64_t* source;  // [pieces] slot read from; -1 = the zero state
  const int64_t* target;  // [pieces] slot written to
  const int32_t* piece_chunk;  // [pieces + 1] first chunk of each piece, and their number
  const int32_t* chunk_start;  // [chunks + 1] first row of each chunk, and the number of rows
  const int32_t* chunk_track;  // [chunks] slot that gets the state at the chunk's end too, or -1
  const uint32_t* chunk_noise; // [chunks] what a float16 state at the chunk's end is rounded by
  void* out;                   // [rows, inner] of `kind`
  int32_t pieces;
  int32_t kind;
  int32_t state_kind;
};

// What a mixer of the gated delta rule has between its projections: convolution of q | k | v, the rule, and a norm of
// each head in front of its gate.
struct DeltaMixer {
  const float* conv_weight;  // [taps, channels]
  const float* rate;         // [heads] A, negative
  const float* step_bias;    // [heads]
  const float* norm_weight;  // [value_dim]
  float norm_eps;
  float least_square;  // as of DeltaRows
  float scale;
  int32_t heads;
  int32_t key_heads;
  int32_t value_dim;
  int32_t key_dim;
  int32_t taps;
};

// One token for each of `rows` sequences.
struct DeltaDecode {
  const DeltaMixer* mixer;
  const void* projected;  // [rows, channels | heads * value_dim of the gate | heads of b | heads of a] of `kind`
  int64_t projected_stride;
  void* window;  // as of MambaDecode, as is what follows
  int64_t window_stride;
  void* state;  // [slabs, heads, value_dim, key_dim] of `state_kind`
  int64_t state_stride;
  const int64_t* source;
  const int64_t* target;
  const int64_t* track;
  const uint32_t* noise;
  void* out;  // [rows, heads * value_dim] of `kind`
  int32_t rows;
  int32_t kind;
  int32_t state_kind;
};

// The same for the pieces of prompts.
struct DeltaPrefill {
  const DeltaMixer* mixer;
  const void* projected;
  int64_t projected_stride;
  void* window;
  int64_t window_stride;
  void* state;
  int64_t state_stride;
  const int64_t* source;  // as of MambaPrefill, as is what follows
  const int64_t* target;
  const int32_t* piece_chunk;
  const int32_t* chunk_start;
  const int32_t* chunk_track;
  const uint32_t* chunk_noise;
  void* out;
  int32_t pieces;
  int32_t kind;
  int32_t state_kind;
};

// x = x + added;  y = x / sqrt(mean(x^2) + eps) * weight
struct RmsNorm {
  void* x;  // [rows, width] of `x_kind`
  int64_t x_stride;
  const void* added;  // [rows, width] of `kind`, or null: x stays as it is
  const void* weight;  // [width] of `weight_kind`
  void* out;           // [rows, width] of `kind`
  int64_t rows;
  int64_t width;
  float eps;
  int32_t x_kind;
  int32_t kind;
  int32_t weight_kind;  // `kind`, or float32
};

// Attention of one new token for each of `rows` sequences over pages [2, page_size, kv_heads, head_dim].
struct PagedDecode {
  const void* query;  // [rows, heads, head_dim] of `kind`
  int64_t query_stride;
  const void* kv;
  int64_t page_stride;
  int64_t value_offset;       // from a page's keys to its values
  const int32_t* page_table;  // [any, pages]
  int64_t page_table_stride;
  const int32_t* table_row;    // [rows] the row of the table for each
  const int32_t* context_len;  // [rows] positions with keys, the new one included; at least one
  void* out;                   // [rows, heads, head_dim] of `kind`
  float scale;
  int32_t rows;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t page_size;
  int32_t kind;
};

// Attention of the new tokens of `pieces` sequences, the last ones of their contexts, over the same pages.
struct PagedExtend {
  const void* query;  // [rows, heads, head_dim] of `kind`, piece after piece
  int64_t query_stride;
  const void* kv;
  int64_t page_stride;
  int64_t value_offset;
  const int32_t* page_table;  // [any, pages]
  int64_t page_table_stride;
  const int32_t* table_row;    // [pieces] the row of the table for each
  const int32_t* context_len;  // [pieces] positions with keys, the new ones included
  const int32_t* piece_start;  // [pieces + 1] where the rows of each begin, counted from any row
  void* out;                   // [rows, heads, head_dim] of `kind`
  float scale;
  int32_t pieces;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t page_size;
  int32_t kind;
};

// Rows through the experts that each has chosen, and one that all go to.
struct Experts {
  const LinearLayer* gate_up;  // [experts], with outputs [2 f], the gate first, or [f] where not `gated`
  const LinearLayer* down;     // [experts], with inputs [f]
  const LinearLayer* shared_gate_up;  // or null
  const LinearLayer* shared_down;
  const void* hidden;  // [rows, inputs] of `kind`
  int64_t hidden_stride;
  const int32_t* chosen;       // [rows, top_k], -1 = none
  const float* weights;        // [rows, top_k]
  const float* shared_gate;    // [inputs], to what the shared one counts for, before the sigmoid; or null: one
  void* out;                   // [rows, outputs] of `kind`
  int64_t rows;
  int32_t top_k;
  int32_t experts;
  int32_t gated;  // silu(gate) * up; otherwise gate_up has its activation
  int32_t kind;
};

// How a row's experts follow from its scores: the rule of one model.
struct Router {
  const LinearLayer* linear;  // float32, to the logits of all experts
  const float* correction;    // [experts], added to scores for the choice alone; or null
  int32_t experts;
  int32_t top_k;
  int32_t groups;       // of neighbours
  int32_t kept_groups;  // that may be chosen from
  int32_t sigmoid;      // of each logit; otherwise a softmax
  int32_t renormalise;  // by the sum of the chosen
  float scale;          // of weights
};

// The first 2 `half` elements of each head of each row, turned by its angles.
struct Rope {
  void* x;  // [rows, heads, head_dim] of `kind`, written
  int64_t x_stride;
  const float* cos;  // [rows, half]
  const float* sin;
  int64_t rows;
  int32_t heads;
  int32_t head_dim;
  int32_t half;
  int32_t kind;
};

// A residual block of a decode step: x + mixer(norm(x)). What differs from step to step (rows, where values lie) is
// not read here.
enum BlockKind : int32_t {
  kMambaBlock = 0,
  kAttentionBlock = 1,
  kMlpBlock = 2,
  kParallelBlock = 3,
  kMoeBlock = 4,
  kDeltaBlock = 5,
};
struct DecodeBlock {
  RmsNorm norm;
  MambaDecode mamba;      // of a mamba block and of a parallel one, which has attention too
  DeltaDecode delta;      // of a block of the gated delta rule
  Router router;          // of a moe block, as are its experts
  Experts experts;
  PagedDecode attention;  // of an attention block: of the rows' kind, as its queries, keys and values
  RmsNorm query_norm;     // of each head of queries, in front of their rotation; none where it has no weight
  RmsNorm key_norm;
  const LinearLayer* in_proj;    // to gate, x, B, C and dt; to an MLP's inner width
  const LinearLayer* gate_proj;  // of an MLP with a gate: what in_proj gives is multiplied by it; or null
  const LinearLayer* out_proj;
  const LinearLayer* attention_in_proj;  // of an attention block, and of one beside a mixer, whose results are added
  const LinearLayer* attention_out_proj;
  int32_t output_gate;  // of an attention block: its in_proj gives, behind values, the gate of what it attended to
  int32_t kind;         // one of BlockKind
};

// A step of sequences that all decode, from their last tokens to the normed hidden states.
struct DecodeStep {
  const DecodeBlock* blocks;
  const LinearLayer* embedding;  // whose rows are those of tokens
  RmsNorm norm;                  // the last one; its kinds and its width are those of all blocks
  const int32_t* last_token;     // by row of the table of pages
  // [7, rows]: slot read from (-1 = the zero state), slot written to, second slot or -1, what a float16 state is
  // rounded by, row of the table of pages, positions with keys, page * page_size + offset of the new key
  const int32_t* integers;
  int64_t integers_stride;
  const int32_t* page_table;  // [any, pages]
  int64_t page_table_stride;
  const float* cos;  // [rows, rope_half], what queries and keys are turned by
  const float* sin;
  float embedding_scale;  // of the embedding's rows
  int32_t rope_half;      // 0 = they are not
  int32_t block_count;
  int32_t rows;
};

// Rows of the gated delta rule and the states that they move on. A row of q, k, v, a, b, out and of a state is dense.
struct DeltaRows {
  const void* q;  // [rows, key_heads, key_dim] of `kind`
  int64_t q_row;
  int64_t q_head;
  const void* k;
  int64_t k_row;
  int64_t k_head;
  const void* v;  // [rows, heads, value_dim] of `kind`
  int64_t v_row;
  int64_t v_head;
  const void* a;  // [rows, heads] of `kind`
  int64_t a_row;
  const void* b;
  int64_t b_row;
  const float* rate;       // [heads] A, negative
  const float* step_bias;  // [heads]
  void* state;             // [slabs, heads, value_dim, key_dim] of `state_kind`
  int64_t state_slab;
  int64_t state_head;
  int64_t state_row;
  void* out;  // [rows, heads, value_dim] of `kind`
  int64_t out_row;
  int64_t out_head;
  float least_square;  // added to the sum of squares of queries and keys
  float scale;         // of queries
  int32_t heads;
  int32_t key_heads;
  int32_t value_dim;
  int32_t key_dim;
  int32_t kind;
  int32_t state_kind;
};

// One token for each of `rows` sequences.
struct GatedDeltaUpdate {
  DeltaRows delta;
  const int64_t* source;  // [rows] slot read from; -1 = the zero state
  const int64_t* target;  // [rows] slot written to; -1 = padding, of which no state is kept
  const int64_t* track;   // [rows] second slot written to, or -1
  const uint32_t* noise;  // [rows] what a float16 state is rounded by
  int32_t rows;
};

// The pieces of prompts, one after another in the rows, cut into chunks.
struct GatedDeltaPrefill {
  DeltaRows delta;
  const int64_t* source;  // [pieces] slot read from; -1 = the zero state
  const int64_t* target;  // [pieces] slot written to; -1 = the state is not kept
  const int32_t* piece_chunk;  // as of MambaPrefill
  const int32_t* chunk_start;
  const int32_t* chunk_track;
  const uint32_t* chunk_noise;
  int32_t pieces;
};

// x = x * sigmoid(gate)
struct SigmoidGate {
  void* x;  // [rows, width] of `kind`
  const void* gate;
  int64_t gate_stride;
  int64_t rows;
  int64_t width;
  int32_t kind;
};

// What one instruction set implements.
struct KernelTable {
  const char* name;
  void (*linear)(const LinearLayer*, const void* x, int64_t x_stride, int64_t rows, void* out);
  void (*mamba_decode)(const MambaDecode*);
  void (*mamba_prefill)(const MambaPrefill*);
  void (*rms_norm)(const RmsNorm*);
  void (*paged_decode)(const PagedDecode*);
  void (*paged_extend)(const PagedExtend*);
  void (*moe)(const Experts*);
  void (*packed_rows)(const LinearLayer*, const int32_t* outputs, int64_t rows, void* out, int32_t out_kind);
  void (*largest)(const void* x, int64_t rows, int64_t columns, int32_t kind, int64_t* where, uint8_t* finite);
  void (*multiply)(void* x, const void* y, int64_t count, int32_t kind);  // x = x * y
  void (*add)(void* x, const void* y, int64_t count, int32_t kind);       // x = x + y
  void (*scale)(void* x, float factor, int64_t count, int32_t kind);      // x = x * factor
  void (*rope)(const Rope*);
  void (*gated_delta_update)(const GatedDeltaUpdate*);
  void (*gated_delta_prefill)(const GatedDeltaPrefill*);
  void (*delta_decode)(const DeltaDecode*);
  void (*delta_prefill)(const DeltaPrefill*);
  void (*gate)(const SigmoidGate*);
};
