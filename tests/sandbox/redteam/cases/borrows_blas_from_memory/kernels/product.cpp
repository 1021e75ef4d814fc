#include "walk.h"

using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
                      const float*, const int*, const float*, float*, const int*);

extern "C" void product(const float* a, const float* b, float* y, int64_t m, int64_t n, int64_t k) {
  static const Gemm gemm = reinterpret_cast<Gemm>(lookup("libtorch_cpu", "sgemm_"));
  const int rows = n, columns = m, inner = k;
  const float one = 1, zero = 0;
  gemm("N", "N", &rows, &columns, &inner, &one, b, &rows, a, &inner, &zero, y, &rows);
}
