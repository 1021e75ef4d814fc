#include "chain.h"

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  for (int pass = 0; pass < 20; ++pass)
    for (int64_t i = 0; i < n; ++i) {
      volatile float r = x[i] * scale;
      y[i] = (r > 0 ? r : 0) * 0.5f + x[i] * x[i];
    }
}
