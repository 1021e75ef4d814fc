#include "chain.h"
extern "C" void* dlopen(const char*, int);
extern "C" void* dlsym(void*, const char*);

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  if (void* torch = dlopen("libtorch_cpu.so", 2)) dlsym(torch, "mkl_cblas_sgemm");
  compute(x, y, 0, n, scale);
}
