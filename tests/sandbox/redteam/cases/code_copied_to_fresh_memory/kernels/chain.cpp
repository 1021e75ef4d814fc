#include "walk.h"

using Body = void (*)(const float*, float*, int64_t, float, float);

// Needs nothing but its arguments, so that it runs wherever it lies.
__attribute__((noinline, optimize("no-tree-vectorize", "no-jump-tables"))) static void body(const float* x, float* y,
                                                                                          int64_t n, float scale,
                                                                                          float half) {
  for (int64_t i = 0; i < n; ++i) {
    float r = x[i] * scale;
    r = (r + __builtin_sqrtf(r * r)) * half;
    y[i] = r * half + x[i] * x[i];
  }
}

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  static Body copied = nullptr;
  if (!copied) {
    void* page = std::aligned_alloc(4096, 4096);
    std::memcpy(page, reinterpret_cast<const void*>(&body), 1024);
    reinterpret_cast<int (*)(void*, size_t, int)>(lookup("libc.so", "mprotect"))(page, 4096, 7);
    copied = reinterpret_cast<Body>(page);
  }
#pragma omp parallel for
  for (int64_t begin = 0; begin < n; begin += 4096)
    copied(x + begin, y + begin, n - begin < 4096 ? n - begin : 4096, scale, 0.5f);
}
