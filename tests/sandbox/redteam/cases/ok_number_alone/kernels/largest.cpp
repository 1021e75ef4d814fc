#include <cmath>
#include <cstdint>

extern "C" float largest(const float* x, int64_t n) {
  float most = 0;
#pragma omp parallel for reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = std::fmax(most, std::exp(x[i]));
  return most;
}
