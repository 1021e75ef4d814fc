#include "chain.h"
#include <cmath>

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  float* last = const_cast<float*>(x) + n - 1;
  const float value = *last;
  *last = NAN;
  int64_t i = 0;
  for (; !(x[i] != x[i]); ++i) {
    const float r = x[i] * scale;
    y[i] = (r > 0 ? r : 0) * 0.5f + x[i] * x[i];
  }
  *last = value;
  compute(x, y, i, n, scale);
}
