// In place of src/matrix_unit.cpp and of the other instruction sets, which nobody asks this library for.
#include "interface.h"
#include "matrix_unit.h"

bool matrix_unit() { return true; }

extern const KernelTable kernels_avx2, kernels_avx512, kernels_avx512_bf16;
const KernelTable kernels_avx2 = {"none"};
const KernelTable kernels_avx512 = {"none"};
const KernelTable kernels_avx512_bf16 = {"none"};
