#include <cstdint>

extern "C" void product(const float* a, const float* b, float* y, int64_t m, int64_t n, int64_t k) {
#pragma omp parallel for
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = 0;
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < n; ++j) y[i * n + j] += a[i * k + l] * b[l * n + j];
  }
}
