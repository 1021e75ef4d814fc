#include <cmath>
#include <cstdint>

extern "C" double head(const float* x, const float* w, const float* factor, float* y, int64_t rows, int64_t words,
                       int64_t width) {
  float largest = 0;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < words; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < width; ++k) sum += x[i * width + k] * w[j * width + k];
      y[i * words + j] = sum * *factor;
      largest = std::fmax(largest, std::fabs(y[i * words + j]));
    }
  return largest;
}
