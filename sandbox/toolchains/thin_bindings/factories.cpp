// Emits torch's inline functions that factories.h declares, by taking their addresses.
#include <torch/types.h>

#include "factories.h"

namespace declared {
PYBIND11_THIN_FACTORIES(PYBIND11_THIN_DECLARE)
}

#define PYBIND11_THIN_ADDRESSES(name, parameters)                                          \
  reinterpret_cast<void (*)()>(static_cast<decltype(&declared::name)>(&at::name)),         \
      reinterpret_cast<void (*)()>(static_cast<decltype(&declared::name)>(&torch::name)),
[[gnu::used]] static void (*const addresses[])() = {PYBIND11_THIN_FACTORIES(PYBIND11_THIN_ADDRESSES)};
