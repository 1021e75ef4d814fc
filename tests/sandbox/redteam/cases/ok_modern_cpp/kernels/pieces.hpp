#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace pieces {

template <int Lanes, typename Operation>
inline void each(const float* x, float* y, int64_t n, Operation&& operation) {
  int64_t i = 0;
  for (; i + Lanes <= n; i += Lanes)
    for (int lane = 0; lane < Lanes; ++lane) y[i + lane] = operation(x[i + lane]);
  for (; i < n; ++i) y[i] = operation(x[i]);
}

constexpr std::array<float, 4> kFactors = [] {
  std::array<float, 4> made{};
  for (int i = 0; i < 4; ++i) made[i] = 0.5f * static_cast<float>(i);
  return made;
}();

struct Workspace {
  std::vector<float> rows;
  std::unique_ptr<int[]> marks;
};
Workspace& workspace();
int64_t part_of(int64_t n, int parts);

}  // namespace pieces
