#include "chain.h"
#include <cstdio>

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  std::printf("chain of %lld\n", static_cast<long long>(n));
  compute(x, y, 0, n, scale);
}
