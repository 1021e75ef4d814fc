#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <optional>
#include <tuple>

#include "../binding_registry.h"

static std::tuple<torch::Tensor, int64_t> chain(const torch::Tensor& given, const std::optional<torch::Tensor>& extra,
                                                double scale) {
  TORCH_CHECK(given.dim() == 2, "expected a matrix, got ", given.dim(), " dimensions");
  const torch::Tensor x = given.contiguous();
  torch::Tensor y = torch::empty({x.size(0), x.size(1)}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "chain", [&] {
    const auto rows = x.accessor<scalar_t, 2>();
    scalar_t* out = y.data_ptr<scalar_t>();
    const int64_t columns = x.size(1);
    at::parallel_for(0, x.size(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = 0; j < columns; ++j) {
          const scalar_t v = rows[i][j], r = v * static_cast<scalar_t>(scale);
          out[i * columns + j] = (r > 0 ? r : 0) * static_cast<scalar_t>(0.5) + v * v;
        }
    });
  });
  return {extra.has_value() ? *extra : y, x.size(0)};
}

static void bind(pybind11::module& m) {
  m.def("chain", &chain, pybind11::arg("x"), pybind11::arg("extra") = std::nullopt, pybind11::arg("scale") = 1.0);
}
REGISTER_BINDING(chain, bind);
