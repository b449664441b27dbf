// A step in which all sequences decode, in one call: its kernels follow one another without a return to
// Python. So no other Python thread takes the interpreter's lock in between, and the workers stay awake.
#pragma once
#include "interface.h"

// Computes the step; `out`: [rows, width], the normed hidden states.
void decode_step(const KernelTable& kernels, const DecodeStep& step, void* out);

// Lets a head draft tokens; writes them to `drafted`, and the head's keys and values.
void draft(const KernelTable& kernels, const DraftHead& head, const DraftTurns& turns);
