#include <cmath>
#include <cstdint>

extern "C" void conv(const float* x, const float* w, const float* bias, const float* gamma, const float* beta,
                     const float* mean, const float* var, float* y, int batch, int channels, int outputs, int height,
                     int width, float eps) {
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int n = 0; n < batch; ++n)
    for (int o = 0; o < outputs; ++o) {
      const float scale = gamma[o] / std::sqrt(var[o] + eps);
      const float shift = (bias[o] - mean[o]) * scale + beta[o];
      for (int i = 0; i < height; ++i)
        for (int j = 0; j < width; ++j) {
          float sum = 0;
          for (int c = 0; c < channels; ++c)
            for (int u = -1; u <= 1; ++u)
              for (int v = -1; v <= 1; ++v)
                if (i + u >= 0 && i + u < height && j + v >= 0 && j + v < width)
                  sum += x[((n * channels + c) * height + i + u) * width + j + v] *
                         w[((o * channels + c) * 3 + u + 1) * 3 + v + 1];
          const float value = sum * scale + shift;
          y[((n * outputs + o) * height + i) * width + j] = value > 0 ? value : 0;
        }
    }
}
