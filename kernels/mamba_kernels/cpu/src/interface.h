// The plain C interface between Python (ctypes) and the kernels. Pointers refer to memory that the caller owns
// and keeps during the call; strides are in elements. A test compares these structures with ../structures.py.
#pragma once
#include <cstdint>

enum Kind : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };
// Storage of a layer's weights: as numbers of `kind`, or as int8 or four bits, with one float16 scale for 32
// inputs of an output. kInt4Zeros also has, for each scale, the number that stands for zero.
enum Packing : int32_t { kWhole = 0, kInt8 = 1, kInt4 = 2, kInt4Zeros = 3 };
enum Activation : int32_t { kIdentity = 0, kRelu = 1, kReluSquared = 2, kSilu = 3 };

struct AdapterChanges;

// The product y = activation(x W^T + b) with packed weights.
struct LinearLayer {
  const void* packed;
  const void* bias;  // [outputs] of `kind`, or null
  int64_t inputs;
  int64_t outputs;  // of a row of y
  int32_t kind;  // type of whole weights, bias, x and y
  int32_t packing;
  int32_t activation;
  const int32_t* order;     // [inputs] place in a row of x of each input of the matrix; null = the same order
  const LinearLayer* rest;  // product for the outputs after this matrix's, with the same `outputs`; or null
  int64_t part;             // outputs of this matrix; 0 = all outputs of a row of y
  const AdapterChanges* changes;  // changes of the rows of y by adapters, or null
};

// Matrices B of all adapters for those outputs of a product that belong to one module of the checkpoint.
struct AdapterPart {
  const void* second;  // [places, rank, width] of the layer's kind
  int64_t start;       // first of the outputs
  int64_t width;
};

// Low-rank changes y += (x A^T) B of a product's rows. Each adapter has a place, which is an index in the
// arrays.
struct AdapterChanges {
  const LinearLayer* plain;  // the product without its activation
  const void* first;         // [places, parts, rank, inputs] of `kind`
  const AdapterPart* parts;
  const int32_t* ranks;  // [places] rank of the adapter in each place; 0 = none, or it does not change this product
  int64_t inputs;
  int64_t outputs;
  int32_t part_count;
  int32_t rank;  // of the places
  int32_t kind;
};

// Weights and shape of a Mamba2 mixer between its projections.
struct Mixer {
  const float* conv_weight;  // [taps, channels]
  const float* conv_bias;    // [channels] or null
  const float* rate;         // [heads] A, negative
  const float* skip;         // [heads] D
  const float* step_bias;    // [heads]
  const void* norm_weight;   // [inner] of the rows' kind; null = only the gate
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

// What the rows of a step do with a layer's ring. The ring keeps the inputs of tokens that states lack, as
// the recurrence reads them: x | B | dt of Mamba2, k | v | a | b of the gated delta rule. If `lane` is null,
// no state lacks inputs, and all rows write their states.
struct StateRing {
  void* inputs;  // [lanes, lane_inputs, width] of the rows' kind
  int64_t width;
  int64_t lane_inputs;
  const int32_t* lane;     // [rows] lane of each row, or -1; null = no row has one
  const int32_t* waiting;  // [rows] inputs in the lane, oldest first
  const int32_t* writes;   // [rows] whether a row writes its state; otherwise its input is added to its lane
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
  const uint32_t* noise;  // [rows] word by which a float16 state is rounded
  void* out;              // [rows, inner] of `kind`
  StateRing ring;
  int32_t rows;
  int32_t kind;
  int32_t state_kind;
};

// All tokens of pieces of prompts in a Mamba2 mixer. The pieces follow one another in the rows, cut into
// chunks.
struct MambaPrefill {
  const Mixer* mixer;
  const void* projected;  // as in MambaDecode
  int64_t projected_stride;
  void* window;
  int64_t window_stride;
  void* state;
  int64_t state_stride;
  const int64_t* source;  // [pieces] slot read from; -1 = the zero state
  const int64_t* target;  // [pieces] slot written to
  const int32_t* piece_chunk;  // [pieces + 1] first chunk of each piece, and the number of chunks
  const int32_t* chunk_start;  // [chunks + 1] first row of each chunk, and the number of rows
  const int32_t* chunk_track;  // [chunks] slot of the checkpoint at the chunk's end, or -1
  const uint32_t* chunk_noise; // [chunks] word by which a float16 state at the chunk's end is rounded
  void* out;                   // [rows, inner] of `kind`
  int32_t pieces;
  int32_t kind;
  int32_t state_kind;
};

// Weights and shape of a mixer of the gated delta rule between its projections: convolution of q | k | v, the rule,
// and a norm of each head before its gate.
struct DeltaMixer {
  const float* conv_weight;  // [taps, channels]
  const float* rate;         // [heads] A, negative
  const float* step_bias;    // [heads]
  const float* norm_weight;  // [value_dim]
  float norm_eps;
  float least_square;  // as in DeltaRows
  float scale;
  float beta_scale;
  int32_t heads;
  int32_t key_heads;
  int32_t value_dim;
  int32_t key_dim;
  int32_t taps;
  int32_t decays;        // as in DeltaRows
  int32_t sigmoid_gate;  // whether the gate is a sigmoid instead of silu
};

// One token of a mixer of the gated delta rule for each of `rows` sequences.
struct DeltaDecode {
  const DeltaMixer* mixer;
  // [rows, channels | heads * value_dim of the gate | heads of b | heads * decays of a] of `kind`
  const void* projected;
  int64_t projected_stride;
  void* window;  // as in MambaDecode, like the fields that follow
  int64_t window_stride;
  void* state;  // [slabs, heads, value_dim, key_dim] of `state_kind`
  int64_t state_stride;
  const int64_t* source;
  const int64_t* target;
  const int64_t* track;
  const uint32_t* noise;
  void* out;  // [rows, heads * value_dim] of `kind`
  StateRing ring;
  int32_t rows;
  int32_t kind;
  int32_t state_kind;
};

// All tokens of pieces of prompts in a mixer of the gated delta rule.
struct DeltaPrefill {
  const DeltaMixer* mixer;
  const void* projected;  // as in DeltaDecode, like the fields up to `state_stride`
  int64_t projected_stride;
  void* window;
  int64_t window_stride;
  void* state;
  int64_t state_stride;
  const int64_t* source;  // as in MambaPrefill, like the fields that follow
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

// Weights and shape of a gated short convolution between its projections.
struct ShortConvMixer {
  const float* conv_weight;  // [taps, channels]
  const float* conv_bias;    // [channels] or null
  int64_t channels;
  int32_t taps;
};

// One token of a gated short convolution for each of `rows` sequences.
struct ShortConvDecode {
  const ShortConvMixer* mixer;
  const void* projected;  // [rows, channels of b | of c | of v] of `kind`
  int64_t projected_stride;
  void* window;  // [slabs, taps - 1, channels] of `kind`: the last inputs b v
  int64_t window_stride;
  const int64_t* source;  // as in MambaDecode, like the fields that follow
  const int64_t* target;
  const int64_t* track;
  void* out;  // [rows, channels] of `kind`
  int32_t rows;
  int32_t kind;
};

// All tokens of pieces of prompts in a gated short convolution.
struct ShortConvPrefill {
  const ShortConvMixer* mixer;
  const void* projected;  // as in ShortConvDecode, like the fields up to `window_stride`
  int64_t projected_stride;
  void* window;
  int64_t window_stride;
  const int64_t* source;  // as in MambaPrefill, like the fields that follow
  const int64_t* target;
  const int32_t* piece_chunk;
  const int32_t* chunk_start;
  const int32_t* chunk_track;
  void* out;
  int32_t pieces;
  int32_t kind;
};

// The norm x = x + added;  y = x / sqrt(mean(x^2) + eps) * weight.
struct RmsNorm {
  void* x;  // [rows, width] of `x_kind`
  int64_t x_stride;
  const void* added;  // [rows, width] of `kind`; null = x is unchanged
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
  const void* kv;  // of `kind`, or bytes of e4m3 if there are scales
  int64_t page_stride;
  int64_t value_offset;       // distance of a page's values from its keys
  const uint8_t* scales;      // [2, page_size, kv_heads] of each page: exponents of the rows' scales; or null
  int64_t scale_stride;       // distance between the scales of two pages
  int64_t scale_offset;       // distance of the scales of a page's values from those of its keys
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

// Attention of the new tokens of `pieces` sequences, which are the last ones of their contexts, over pages as
// in PagedDecode.
struct PagedExtend {
  const void* query;  // [rows, heads, head_dim] of `kind`, piece after piece
  int64_t query_stride;
  const void* kv;  // as in PagedDecode, like the fields that follow
  int64_t page_stride;
  int64_t value_offset;
  const uint8_t* scales;
  int64_t scale_stride;
  int64_t scale_offset;
  const int32_t* page_table;  // [any, pages]
  int64_t page_table_stride;
  const int32_t* table_row;    // [pieces] the row of the table for each
  const int32_t* context_len;  // [pieces] positions with keys, the new ones included
  const int32_t* piece_start;  // [pieces + 1] first row of each piece, counted from an arbitrary row
  void* out;                   // [rows, heads, head_dim] of `kind`
  float scale;
  int32_t pieces;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t page_size;
  int32_t kind;
};

// Rounding of the keys and values of new tokens into pages of e4m3.
struct KvWrite {
  const void* key;  // [rows, kv_heads, head_dim] of `kind`
  int64_t key_stride;
  const void* value;
  int64_t value_stride;
  uint8_t* kv;  // as in PagedDecode, like the fields that follow
  int64_t page_stride;
  int64_t value_offset;
  uint8_t* scales;
  int64_t scale_stride;
  int64_t scale_offset;
  const int32_t* key_row;  // [rows] page * page_size + offset
  int64_t rows;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t page_size;
  int32_t kind;
};

// A mixture of experts: for each row, the weighted sum of its chosen experts and of the shared expert.
struct Experts {
  const LinearLayer* gate_up;  // [experts], with outputs [2 f], the gate first, or [f] where not `gated`
  const LinearLayer* down;     // [experts], with inputs [f]
  const LinearLayer* shared_gate_up;  // or null
  const LinearLayer* shared_down;
  const void* hidden;  // [rows, inputs] of `kind`
  int64_t hidden_stride;
  const int32_t* chosen;       // [rows, top_k], -1 = none
  const float* weights;        // [rows, top_k]
  const float* shared_gate;    // [inputs], gives the logit of the shared expert's weight; null = weight 1
  void* out;                   // [rows, outputs] of `kind`
  int64_t rows;
  int32_t top_k;
  int32_t experts;
  int32_t gated;  // silu(gate) * up; otherwise gate_up has its activation
  int32_t kind;
};

// The rule of one model by which a row's experts follow from its scores.
struct Router {
  const LinearLayer* linear;  // float32, gives the logits of all experts
  const float* correction;    // [experts], added to scores for the choice alone; or null
  int32_t experts;
  int32_t top_k;
  int32_t groups;       // groups of neighbouring experts
  int32_t kept_groups;  // groups that remain for the choice
  int32_t sigmoid;      // whether scores are sigmoids of logits; otherwise a softmax
  int32_t renormalise;  // whether weights are divided by the sum of the chosen scores
  float scale;          // factor of the weights
};

// Rotation of the first 2 `half` elements of each head of each row by the row's angles.
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

// A residual block of a decode step: x + result_norm(mixer(norm(x))). The step sets the fields of its calls
// that differ from step to step (rows, addresses of values); their contents here are not read.
enum BlockKind : int32_t {
  kMambaBlock = 0,
  kAttentionBlock = 1,
  kMlpBlock = 2,
  kParallelBlock = 3,
  kMoeBlock = 4,
  kDeltaBlock = 5,
  kShortConvBlock = 6,
};
struct DecodeBlock {
  RmsNorm norm;         // without a weight there is none: the mixer takes x, which has the rows' kind
  RmsNorm result_norm;  // norm of the mixer's result; without a weight there is none
  MambaDecode mamba;      // in a mamba block, and in a parallel block, which has attention too
  DeltaDecode delta;      // in a block of the gated delta rule
  ShortConvDecode short_conv;  // in a block of a gated short convolution
  Router router;          // in a moe block, like its experts
  Experts experts;
  PagedDecode attention;  // in an attention block; queries, keys and values have the rows' kind
  // Norms of queries and of keys before their rotation, each over parts of the norm's width; without a weight
  // there is none.
  RmsNorm query_norm;
  RmsNorm key_norm;
  // In a moe block whose experts have a width of their own, in_proj computes rows of that width, and out_proj
  // computes rows of the model's width from the experts' results. In other moe blocks, both are null.
  const LinearLayer* in_proj;    // gives `projected` of a recurrent mixer, or an MLP's inner values
  const LinearLayer* gate_proj;  // gives the factor of an MLP's inner values; null = no gate
  const LinearLayer* out_proj;
  const LinearLayer* attention_in_proj;  // in an attention block, and in a parallel block, which adds both results
  const LinearLayer* attention_out_proj;
  // Layers of the shared expert of a moe block with in_proj, which takes rows of the model's width; elsewhere
  // null.
  const LinearLayer* shared_in_proj;
  const LinearLayer* shared_out_proj;
  void* ring;  // [any, outputs of in_proj] raw inputs of a recurrent layer, by lanes; null without drafts
  int32_t output_gate;  // whether attention_in_proj also gives, after the values, the gate of attention's result
  int32_t kind;         // one of BlockKind
};

// Drafts of a step, which are its last rows, and accepted inputs that live slots lack. Both advance in turns, each with
// one input of some sequences, so that a state takes its inputs one after another. Lanes keep raw inputs: row
// lane * lane_inputs + i of a layer's ring is input i of the lane.
struct Replay {
  // [copies + 1, taps - 1, channels] copies of windows of one layer, which drafts advance; the first is not
  // used
  void* window;
  int64_t window_stride;
  void* state;  // [copies + 1, ...] copies of states; the stride is 0 where layers have none
  int64_t state_stride;
  const int32_t* absorbed_slot;   // [absorbing] live slot
  const int32_t* absorbed_lane;   // [absorbing]
  const int32_t* absorbed_count;  // [absorbing] inputs, the first ones of the lane
  const int32_t* absorbed_noise;  // [absorbing, noise_stride] word by which a float16 state is rounded
  int64_t noise_stride;
  const int32_t* draft_slot;   // [drafting] live slot, of which a copy is made
  const int32_t* draft_lane;   // [drafting]
  const int32_t* draft_len;    // [drafting] number of drafts, in descending order
  const int32_t* draft_token;  // [drafts] first all first drafts, then all second ones, and so on, like the step's rows
  int32_t lane_inputs;
  int32_t absorbing;
  int32_t drafting;
  int32_t drafts;
};

struct DraftHead;

// A step in which all sequences decode, from their last tokens to the normed hidden states.
struct DecodeStep {
  const DecodeBlock* blocks;
  const LinearLayer* embedding;  // matrix with a row for each token
  RmsNorm norm;                  // the last norm; all blocks have its kinds and its width
  const int32_t* last_token;     // by row of the table of pages
  // [7 or 10, rows]: slot read from (-1 = the zero state), slot written to, second slot or -1, word by which
  // a float16 state is rounded, row of the table of pages, positions with keys, page * page_size + offset of
  // the new key; and in a step with a ring the three rows of `StateRing`
  const int32_t* integers;
  int64_t integers_stride;
  const int32_t* page_table;  // [any, pages]
  int64_t page_table_stride;
  const float* cos;  // [rows, rope_half] angles by which queries and keys are rotated
  const float* sin;
  const int32_t* places;  // [rows] place of the adapter of each row, or -1; null = no row has one
  const Replay* replay;   // null = there are no drafts, and nothing waits
  const DraftHead* head;  // head that reads the tokens of the step as well, or passes over them; null = there is none
  float embedding_scale;  // factor of the embedding's rows
  int32_t rope_half;      // pairs that are rotated; 0 = no rotation
  int32_t block_count;
  int32_t rows;
  int32_t head_passes;  // whether the head's keys and values of the tokens become zeros; never with replay
  int32_t has_ring;     // whether states may lack inputs, which wait in the rings of the blocks; never with replay
};

// A head that drafts behind a model. It reads a token together with the model's hidden state of the token before it.
struct DraftHead {
  // blocks of the head, the first of which attends, and its last norm; embedding_scale is not used
  DecodeStep step;
  RmsNorm embedding_norm;
  RmsNorm hidden_norm;
  const LinearLayer* join;    // from both normed rows side by side, the embedding's first, to the stream
  const LinearLayer* output;  // gives the logits
  // [lane_rows + lanes * lane_inputs, width] hidden states of last tokens, by row of the table of pages, then of drafts
  void* kept;
  void* tails;  // [pages, width] hidden state of the last token of each page
  int64_t tails_stride;
  int32_t lane_rows;
};

// Sequences for which a head drafts tokens, those with the most drafts first.
struct DraftTurns {
  const int32_t* table_row;   // [sequences]
  const int32_t* depth;       // [sequences] position of the last token
  const int32_t* count;       // [sequences] tokens to draft
  const int32_t* last_token;  // [sequences]
  const int32_t* place;       // [sequences] row of `kept` with the hidden state before the last token
  int32_t* drafted;           // [sequences, most], written
  int32_t sequences;
  int32_t most;
};

// Rows of the gated delta rule and the states that they advance. A row of q, k, v, a, b, out and of a state is dense.
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
  const void* a;  // [rows, heads, decays] of `kind`
  int64_t a_row;
  const void* b;
  int64_t b_row;
  const float* rate;       // [heads] A, negative
  const float* step_bias;  // [heads, decays]
  void* state;             // [slabs, heads, value_dim, key_dim] of `state_kind`
  int64_t state_slab;
  int64_t state_head;
  int64_t state_row;
  void* out;  // [rows, heads, value_dim] of `kind`
  int64_t out_row;
  int64_t out_head;
  float least_square;  // added to the sum of squares of queries and keys
  float scale;         // factor of queries
  float beta_scale;    // factor of the sigmoid of b
  int32_t heads;
  int32_t key_heads;
  int32_t value_dim;
  int32_t key_dim;
  int32_t kind;
  int32_t state_kind;
  int32_t decays;  // of a head: 1, or one for each of key_dim channels
};

// One token of the gated delta rule for each of `rows` sequences.
struct GatedDeltaUpdate {
  DeltaRows delta;
  const int64_t* source;  // [rows] slot read from; -1 = the zero state
  const int64_t* target;  // [rows] slot written to; -1 = padding, whose state is not stored
  const int64_t* track;   // [rows] second slot written to, or -1
  const uint32_t* noise;  // [rows] word by which a float16 state is rounded
  StateRing ring;
  int32_t rows;
};

// All tokens of pieces of prompts by the gated delta rule. The pieces follow one another in the rows, cut
// into chunks.
struct GatedDeltaPrefill {
  DeltaRows delta;
  const int64_t* source;  // [pieces] slot read from; -1 = the zero state
  const int64_t* target;  // [pieces] slot written to; -1 = the state is not stored
  const int32_t* piece_chunk;  // as in MambaPrefill
  const int32_t* chunk_start;
  const int32_t* chunk_track;
  const uint32_t* chunk_noise;
  int32_t pieces;
};

// The gate x = x * sigmoid(gate).
struct SigmoidGate {
  void* x;  // [rows, width] of `kind`
  const void* gate;
  int64_t gate_stride;
  int64_t rows;
  int64_t width;
  int32_t kind;
};

// Bytes that are moved between a socket and pieces of memory. The same bytes, in their order, are divided
// into blocks, each with a checksum of its own.
struct CheckedBytes {
  const int64_t* addresses;  // [pieces]
  const int64_t* lengths;    // [pieces], above 0
  const int64_t* sizes;      // [blocks], together as many bytes as the pieces
  uint64_t* digests;         // [blocks], written
  int64_t blocks;
  int32_t sends;  // from memory to the socket; otherwise into memory
  int32_t wide;   // whether vectors of 512 bits may be used
};

// The functions that one instruction set implements.
struct KernelTable {
  const char* name;
  void (*linear)(const LinearLayer*, const void* x, int64_t x_stride, int64_t rows, void* out);
  void (*mamba_decode)(const MambaDecode*);
  void (*mamba_prefill)(const MambaPrefill*);
  void (*rms_norm)(const RmsNorm*);
  void (*paged_decode)(const PagedDecode*);
  void (*paged_extend)(const PagedExtend*);
  void (*kv_write)(const KvWrite*);
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
  void (*short_conv_decode)(const ShortConvDecode*);
  void (*short_conv_prefill)(const ShortConvPrefill*);
  // Adds the changes to `out`, [rows, outputs], and applies the activation to all rows. places: [rows]; -1 = no adapter
  void (*change_rows)(const AdapterChanges*, const int32_t* places, const void* x, int64_t x_stride, int64_t rows,
                      void* out, int32_t activation);
};
