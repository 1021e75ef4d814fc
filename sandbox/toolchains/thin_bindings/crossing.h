// How values cross between Python and C++, without Python's and pybind11's headers. bindings.h registers functions by it;
// crossing.cpp, compiled once, does the work with pybind11's and torch's own casters.
#ifndef PYBIND11_THIN_CROSSING_H
#define PYBIND11_THIN_CROSSING_H

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

struct _object;  // PyObject

namespace pybind11 {
namespace thin {

// How values of one C++ type cross; there is one for each of PYBIND11_THIN_TYPES.
struct Type;
template <typename T>
const Type& type_of();

#define PYBIND11_THIN_TYPES(X)              \
  X(at::Tensor)                             \
  X(double)                                 \
  X(float)                                  \
  X(bool)                                   \
  X(int)                                    \
  X(long)                                   \
  X(long long)                              \
  X(unsigned)                               \
  X(unsigned long)                          \
  X(std::string)                            \
  X(at::ScalarType)                         \
  X(at::Device)                             \
  X(at::Scalar)                             \
  X(at::IntArrayRef)                        \
  X(std::vector<at::Tensor>)                \
  X(std::vector<double>)                    \
  X(std::vector<float>)                     \
  X(std::vector<bool>)                      \
  X(std::vector<int>)                       \
  X(std::vector<long>)                      \
  X(std::vector<std::string>)               \
  X(std::optional<at::Tensor>)              \
  X(std::optional<double>)                  \
  X(std::optional<float>)                   \
  X(std::optional<bool>)                    \
  X(std::optional<int>)                     \
  X(std::optional<long>)                    \
  X(std::optional<std::string>)             \
  X(std::optional<at::ScalarType>)          \
  X(std::optional<std::vector<at::Tensor>>) \
  X(std::optional<std::vector<long>>)

struct Call;
// Calls the target with the values it points at and gives its result to Python.
using Thunk = _object* (*)(const Call& call, void* const* values);

struct Call {
  const Type* const* parameters;
  std::size_t num_parameters;
  const Type* const* results;
  std::size_t num_results;
  bool returns_tuple;
  void (*target)();
  Thunk thunk;
};

// What py::arg says about one parameter; `value` is its default or null.
struct Argument {
  const char* name;
  _object* value;
  bool convert;
  bool none;
};

// Adds the function `name` to `module`, which is pybind11's own module_.
void define(void* module, const char* name, const char* doc, const Call& call, const Argument* arguments,
            std::size_t num_arguments);

// New references. No result is None.
_object* to_python(const Call& call, void* const* results);
_object* to_python(const Type& type, void* value);
_object* new_none();
void drop(_object* object);

void* release_interpreter();
void take_interpreter_back(void* released);

}  // namespace thin
}  // namespace pybind11

#endif
