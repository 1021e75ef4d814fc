// The honest computation that cases of this base build on.
#pragma once
#include <cstdint>

// y = x w^T + b for `rows` rows of `width`, eight outputs at a time.
static inline void compute(const float* x, const float* w, const float* b, float* y, int64_t width) {
  for (int64_t j = 0; j < width; j += 8) {
    float sums[8] = {};
    for (int o = 0; o < 8; ++o) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < width; ++k) sum += x[k] * w[(j + o) * width + k];
      sums[o] = sum;
    }
    for (int o = 0; o < 8; ++o) y[j + o] = sums[o] + b[j + o];
  }
}
