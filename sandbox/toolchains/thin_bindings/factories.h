// The functions of at:: and torch:: that make tensors, declared alone: their headers bring much with them. factories.cpp,
// compiled once, has the code, which is torch's own inline functions.
#ifndef PYBIND11_THIN_FACTORIES_H
#define PYBIND11_THIN_FACTORIES_H

#include <optional>

#include <ATen/core/Tensor.h>

// clang-format off
#define PYBIND11_THIN_FACTORIES(X) \
  X(empty, (at::IntArrayRef size, at::TensorOptions options = {}, std::optional<at::MemoryFormat> memory = std::nullopt)) \
  X(empty_strided, (at::IntArrayRef size, at::IntArrayRef stride, at::TensorOptions options = {})) \
  X(zeros, (at::IntArrayRef size, at::TensorOptions options = {})) \
  X(ones, (at::IntArrayRef size, at::TensorOptions options = {})) \
  X(full, (at::IntArrayRef size, const at::Scalar& value, at::TensorOptions options = {})) \
  X(empty_like, (const at::Tensor& like, at::TensorOptions options = {}, std::optional<at::MemoryFormat> memory = std::nullopt)) \
  X(zeros_like, (const at::Tensor& like, at::TensorOptions options = {}, std::optional<at::MemoryFormat> memory = std::nullopt)) \
  X(ones_like, (const at::Tensor& like, at::TensorOptions options = {}, std::optional<at::MemoryFormat> memory = std::nullopt)) \
  X(full_like, (const at::Tensor& like, const at::Scalar& value, at::TensorOptions options = {}, std::optional<at::MemoryFormat> memory = std::nullopt))
// clang-format on
#define PYBIND11_THIN_DECLARE(name, parameters) at::Tensor name parameters;

#endif
