#include <cstdint>

extern "C" void strided(const float* x, const float* y, const float* z, float* sums, float* means, int64_t rows,
                        int64_t columns) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    float total = 0;
    for (int64_t j = 0; j < columns; ++j) {
      sums[i * columns + j] = x[i * columns + j] * 2 + y[i * columns + j];
      total += x[i * columns + j] * z[j];
    }
    means[i] = total / columns;
  }
}
