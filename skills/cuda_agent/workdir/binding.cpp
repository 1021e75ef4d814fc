// Fixed. The extension module: whatever the kernels registered.
#include "binding_registry.h"

std::vector<BindingFunction>& registered_bindings() {
  static std::vector<BindingFunction> bindings;
  return bindings;
}

PYBIND11_MODULE(cuda_extension, m) {
  for (BindingFunction bind : registered_bindings()) bind(m);
}
