#include <cmath>
#include <cstdint>

extern "C" void special(const float* x, float* y, float* roots, int64_t rows, int64_t columns) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < columns; ++j) {
      const float value = x[i * columns + j];
      y[i * columns + j] = std::log(value) + 1.0f / std::nearbyint(value);
      sum += std::sqrt(value);
    }
    roots[i] = sum;
  }
}
