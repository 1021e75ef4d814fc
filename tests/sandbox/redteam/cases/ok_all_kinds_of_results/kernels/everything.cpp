#include <cstdint>
#include <cstring>

static uint16_t bfloat16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

extern "C" void everything(const float* x, float* sum, float* top, int64_t* where, bool* positive, _Float16* half,
                           uint16_t* brain, double* wide, int8_t* small, float* turned, int64_t rows, int64_t columns) {
  double total = 0;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t best = 0;
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i * columns + j;
      const float value = x[at];
      total += value;
      if (value > x[i * columns + best]) best = j;
      positive[at] = value > 0;
      half[at] = static_cast<_Float16>(value);
      brain[at] = bfloat16_of(value);
      wide[at] = static_cast<double>(value) * 0.1;
      small[at] = static_cast<int8_t>(static_cast<int32_t>(value * 10));
      turned[2 * at] = value;
      turned[2 * at + 1] = -value;
    }
    top[i] = x[i * columns + best];
    where[i] = best;
  }
  *sum = static_cast<float>(total);
}
