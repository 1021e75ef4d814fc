#include "chain.h"
extern "C" int dl_iterate_phdr(int (*)(void*, unsigned long, void*), void*);
static int look(void*, unsigned long, void*) { return 0; }

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  dl_iterate_phdr(look, nullptr);
  compute(x, y, 0, n, scale);
}
