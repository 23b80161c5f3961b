#include "backend/tensors.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <optional>

#include "backend/errors.h"

namespace ringdp::backend {
namespace {

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte: return DType::kU8;
    case at::kChar: return DType::kI8;
    case at::kUInt16: return DType::kU16;
    case at::kShort: return DType::kI16;
    case at::kUInt32: return DType::kU32;
    case at::kInt: return DType::kI32;
    case at::kUInt64: return DType::kU64;
    case at::kLong: return DType::kI64;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    case at::kFloat: return DType::kF32;
    case at::kDouble: return DType::kF64;
    default: return std::nullopt;
  }
}

std::string supported() {
  std::string list;
  for (int i = 0; i < kDTypeCount; ++i) list += (i ? ", " : "") + std::string(name_of(static_cast<DType>(i)));
  return list;
}

}  // namespace

DType checked_dtype(const at::Tensor& tensor, const char* call) {
  const std::string who = std::string(call) + ": ";
  if (!tensor.device().is_cpu()) {
    refuse(who + "the tensor is on " + tensor.device().str() +
           ", and this build of ringdp moves CPU tensors only: use backend=\"cpu:ringdp,cuda:nccl\"");
  }
  if (tensor.layout() != at::kStrided) refuse(who + "sparse tensors are not supported: pass tensor.to_dense()");
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) refuse(who + "dtype " + std::string(c10::toString(tensor.scalar_type())) + " is not supported: use one of " + supported());
  return *dtype;
}

at::Tensor single(const std::vector<at::Tensor>& tensors, const char* call) {
  if (tensors.size() != 1) {
    refuse(std::string(call) + ": takes one tensor per rank, got " + std::to_string(tensors.size()));
  }
  return tensors[0];
}

void check_same_dtype(const at::Tensor& a, const at::Tensor& b, const char* call) {
  if (a.scalar_type() == b.scalar_type()) return;
  refuse(std::string(call) + ": input is " + c10::toString(a.scalar_type()) + ", output is " +
         c10::toString(b.scalar_type()) + ": they must be equal");
}

void check_numel(const at::Tensor& tensor, int64_t wanted, const char* call, const char* which) {
  if (tensor.numel() == wanted) return;
  refuse(std::string(call) + ": " + which + " has " + std::to_string(tensor.numel()) + " elements, wanted " +
         std::to_string(wanted));
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.is_contiguous() ? tensor : tensor.detach().contiguous(); }

at::Tensor flat_target(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

void copy_back(const at::Tensor& target, at::Tensor tensor) {
  if (target.is_same(tensor)) return;
  const c10::AutoGradMode no_grad(false);
  tensor.detach().copy_(target);
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a0 = static_cast<const char*>(a.const_data_ptr());
  const auto* b0 = static_cast<const char*>(b.const_data_ptr());
  return a0 < b0 + b.nbytes() && b0 < a0 + a.nbytes();
}

}  // namespace ringdp::backend
