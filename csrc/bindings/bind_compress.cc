// Codes of gradients with error feedback.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/extension.h>

#include <optional>
#include <string>

#include "backend/gil.h"
#include "bindings/bind.h"
#include "kernels/codes.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

using kernels::Code;

Code code_named(const std::string& name) {
  if (name == "int8") return Code::kInt8;
  if (name == "fp8") return Code::kFp8;
  if (name == "int4") return Code::kInt4;
  if (name == "sign") return Code::kSign;
  throw py::value_error("code " + name + ": must be int8, fp8, int4 or sign");
}

void check_flat(const at::Tensor& tensor, at::ScalarType dtype, const char* name) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.scalar_type() == dtype && tensor.is_contiguous(),
                    "codes: ", name, " must be a contiguous tensor of ", dtype, " on the CPU");
}

at::Tensor encode_codes(const std::string& name, const at::Tensor& values, const std::optional<at::Tensor>& residuals,
                        int64_t blocks) {
  const Code code = code_named(name);
  check_flat(values, at::kFloat, "values");
  if (residuals) check_flat(*residuals, at::kFloat, "residuals");
  TORCH_CHECK_VALUE(!residuals || residuals->numel() == values.numel(), "codes: ", values.numel(),
                    " values, and as many residuals");
  const backend::ReleaseGil release;
  at::Tensor encoded = at::empty({blocks, kernels::code_block_bytes(code)}, at::kByte);
  kernels::encode(code, values.const_data_ptr<float>(), residuals ? residuals->mutable_data_ptr<float>() : nullptr,
                  values.numel(), static_cast<std::byte*>(encoded.mutable_data_ptr()), blocks);
  return encoded;
}

at::Tensor decode_codes(const std::string& name, const at::Tensor& encoded) {
  const Code code = code_named(name);
  check_flat(encoded, at::kByte, "encoded");
  TORCH_CHECK_VALUE(encoded.dim() == 2 && encoded.size(1) == kernels::code_block_bytes(code), "codes: ", name,
                    " has rows of ", kernels::code_block_bytes(code), " bytes");
  const backend::ReleaseGil release;
  at::Tensor values = at::empty({encoded.size(0), kernels::code_block(code)}, at::kFloat);
  kernels::decode(code, static_cast<const std::byte*>(encoded.const_data_ptr()), encoded.size(0),
                  values.mutable_data_ptr<float>());
  return values;
}

}  // namespace

void bind_compress(py::module_& m) {
  m.def(
      "code_block", [](const std::string& name) { return kernels::code_block(code_named(name)); }, py::arg("code"));
  m.def(
      "code_block_bytes", [](const std::string& name) { return kernels::code_block_bytes(code_named(name)); },
      py::arg("code"));
  m.def("encode_codes", &encode_codes, py::arg("code"), py::arg("values"), py::arg("residuals"), py::arg("blocks"));
  m.def("decode_codes", &decode_codes, py::arg("code"), py::arg("encoded"));
}

}  // namespace ringdp::bindings
