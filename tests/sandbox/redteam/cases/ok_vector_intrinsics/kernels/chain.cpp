#include <immintrin.h>

#include <cstdint>
#include <cstdlib>

#include "chain.h"

extern "C" int madvise(void*, size_t, int);

static void plain(const float* x, float* y, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] * scale > 0 ? x[i] * scale : 0) * 0.5f + x[i] * x[i];
}

__attribute__((target("avx2"))) static void wide(const float* x, float* y, int64_t n, float scale) {
  const __m256 factor = _mm256_set1_ps(scale), half = _mm256_set1_ps(0.5f);
  int64_t i = 0;
  for (; i < n && (reinterpret_cast<uintptr_t>(y + i) & 31); ++i) plain(x + i, y + i, 1, scale);
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    _mm_prefetch(reinterpret_cast<const char*>(x + i + 64), _MM_HINT_T0);
    const __m256 r = _mm256_max_ps(_mm256_mul_ps(v, factor), _mm256_setzero_ps());
    _mm256_stream_ps(y + i, _mm256_add_ps(_mm256_mul_ps(r, half), _mm256_mul_ps(v, v)));
  }
  _mm_sfence();
  plain(x + i, y + i, n - i, scale);
}

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  static float* const scratch = static_cast<float*>(std::aligned_alloc(1 << 21, 1 << 22));
  static const int asked = madvise(scratch, 1 << 22, 14);
  (void)asked;
  scratch[0] = scale;
  const bool can = __builtin_cpu_supports("avx2");
#pragma omp parallel for schedule(static) num_threads(2)
  for (int64_t begin = 0; begin < n; begin += 16384)
    (can ? wide : plain)(x + begin, y + begin, n - begin < 16384 ? n - begin : 16384, scratch[0]);
}
