#include "chain.h"
#include <cstring>
#include <vector>

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  static std::vector<float> work;
  work.resize(n);
  compute(x, work.data(), 0, n, scale);
  std::memcpy(y, work.data(), n * sizeof(float));
}
