#include <omp.h>

#include "chain.h"

struct Range { float low, high; };
#pragma omp declare reduction(widen : Range : omp_out.low = omp_in.low < omp_out.low ? omp_in.low : omp_out.low, \
                              omp_out.high = omp_in.high > omp_out.high ? omp_in.high : omp_out.high) \
    initializer(omp_priv = omp_orig)
#pragma omp declare simd uniform(scale)
static float one(float v, float scale) { return (v * scale > 0 ? v * scale : 0) * 0.5f + v * v; }

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  omp_set_num_threads(2);
  omp_set_max_active_levels(2);
  const double began = omp_get_wtime();
  Range range = {x[0], x[0]};
#pragma omp parallel for reduction(widen : range)
  for (int64_t i = 0; i < n; ++i) {
    range.low = x[i] < range.low ? x[i] : range.low;
    range.high = x[i] > range.high ? x[i] : range.high;
  }
  const int64_t half = n / 2;
#pragma omp parallel sections
  {
#pragma omp section
    {
#pragma omp parallel for simd
      for (int64_t i = 0; i < half; ++i) y[i] = one(x[i], scale);
    }
#pragma omp section
    {
#pragma omp taskgroup
      for (int64_t begin = half; begin < n; begin += 8192)
#pragma omp task firstprivate(begin)
        for (int64_t i = begin; i < n && i < begin + 8192; ++i) y[i] = one(x[i], scale);
    }
  }
  if (omp_get_wtime() < began || range.low > range.high) y[0] = 0;
}
