#include "chain.h"

static void* find(void*, const char*) __attribute__((weakref("dlsym")));

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  if (find) find(nullptr, "sgemm_");
  compute(x, y, 0, n, scale);
}
