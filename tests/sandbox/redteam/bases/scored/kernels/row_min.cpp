#include <cstdint>

extern "C" void row_min(const float* x, float* low, int64_t* where, int64_t rows, int64_t width) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    int64_t best = 0;
    for (int64_t c = 1; c < width; ++c)
      if (x[r * width + c] < x[r * width + best]) best = c;
    where[r] = best;
    low[r] = x[r * width + best];
  }
}
