#include <cstdint>

extern "C" {

void rows_of(const float* table, const int64_t* index, const bool* keep, float* rows, int64_t count, int64_t width,
             double scale) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < width; ++j)
      rows[i * width + j] = keep[i] ? table[index[i] * width + j] * static_cast<float>(scale) : 0.0f;
}

void squares(const int32_t* x, int32_t* y, int64_t n, const void* unused) {
  if (unused) return;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t value = static_cast<uint32_t>(x[i]);
    y[i] = static_cast<int32_t>(value * value + 7u);
  }
}
}
