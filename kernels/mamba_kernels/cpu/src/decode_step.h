// A step of sequences that all decode, in one call: its kernels follow one another without a way back to Python, so
// that no other thread of it waits for its lock and the workers stay awake between them.
#pragma once
#include "interface.h"

// `out`: [rows, width], the normed hidden states.
void decode_step(const KernelTable& kernels, const DecodeStep& step, void* out);
