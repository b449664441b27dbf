// A step in which all sequences decode, in one call: its kernels follow one another without a return to Python, so
// that Python's other threads do not take its lock in between, and the workers stay awake.
#pragma once
#include "interface.h"

// Computes the step; `out`: [rows, width], the normed hidden states.
void decode_step(const KernelTable& kernels, const DecodeStep& step, void* out);

// Lets a head draft tokens.
void draft(const KernelTable& kernels, const DraftHead& head, const DraftTurns& turns);
