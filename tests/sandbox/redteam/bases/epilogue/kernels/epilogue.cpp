#include <cmath>
#include <cstdint>

extern "C" void epilogue(float* y, int64_t n) {
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) y[i] = std::tanh(y[i] * 0.05f) / (1.0f + std::exp(-y[i]));
}
