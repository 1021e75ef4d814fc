#include "chain.h"
#include <immintrin.h>

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  _mm_setcsr(_mm_getcsr() | 0x8040);
  compute(x, y, 0, n, scale);
}
