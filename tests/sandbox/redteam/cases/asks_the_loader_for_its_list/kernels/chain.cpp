#include "chain.h"
struct Debug {
  int version;
  void* map;
};
extern "C" Debug _r_debug;

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  static const void* volatile first;
  first = _r_debug.map;
  compute(x, y, 0, n, scale);
}
