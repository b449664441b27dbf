// The choice and the weights of a row's experts.
#pragma once
#include "interface.h"

// logits: [rows, experts]; chosen and weights: [rows, top_k], best first.
void route(const Router& router, const float* logits, int64_t rows, int32_t* chosen, float* weights);
