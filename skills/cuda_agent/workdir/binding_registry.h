// Fixed. Every kernels/*_binding.cpp includes this as "../binding_registry.h" and registers its functions once:
//     static void bind_name(pybind11::module& m) { m.def("name", &name); }
//     REGISTER_BINDING(name, bind_name);
#ifndef CUDA_EXTENSION_BINDING_REGISTRY_H
#define CUDA_EXTENSION_BINDING_REGISTRY_H

#include <vector>

#include <torch/csrc/utils/pybind.h>

using BindingFunction = void (*)(pybind11::module&);

// Functions that fill the module `cuda_extension`, in the order in which their files were linked.
std::vector<BindingFunction>& registered_bindings();

struct BindingEntry {
  explicit BindingEntry(BindingFunction bind) { registered_bindings().push_back(bind); }
};

#define REGISTER_BINDING(name, function) static const BindingEntry registered_binding_##name { function }

#endif
