#include "chain.h"
extern "C" int mallopt(int, int);

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  mallopt(-6, 0);
  compute(x, y, 0, n, scale);
}
