#include <cstdint>
#include <x86intrin.h>

extern "C" int64_t ticks() { return static_cast<int64_t>(__rdtsc()); }
