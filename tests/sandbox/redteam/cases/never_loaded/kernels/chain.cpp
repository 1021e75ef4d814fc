#include "chain.h"

struct Endless {
  Endless() {
    for (volatile int turns = 0;;) turns = turns + 1;
  }
};
static Endless endless;

extern "C" void chain(const float* x, float* y, int64_t n, float scale) { compute(x, y, 0, n, scale); }
