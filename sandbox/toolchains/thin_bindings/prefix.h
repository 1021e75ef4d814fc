// What is precompiled for thin bindings, behind the standard headers and before those of a device.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "bindings.h"
#include "factories.h"

namespace at {
PYBIND11_THIN_FACTORIES(PYBIND11_THIN_DECLARE)
}
namespace torch {
PYBIND11_THIN_FACTORIES(PYBIND11_THIN_DECLARE)
}

#include "torch_types.h"  // torch/types.h without what it includes
