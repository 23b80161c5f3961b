#include "backend/tensors.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>

#include "backend/device/served.h"
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
    case at::kComplexFloat: return DType::kC64;
    case at::kComplexDouble: return DType::kC128;
    case at::kBool: return DType::kBool;
    case at::kFloat8_e4m3fn: return DType::kF8E4M3FN;
    case at::kFloat8_e5m2: return DType::kF8E5M2;
    case at::kFloat8_e4m3fnuz: return DType::kF8E4M3FNUZ;
    case at::kFloat8_e5m2fnuz: return DType::kF8E5M2FNUZ;
    case at::kFloat8_e8m0fnu: return DType::kF8E8M0FNU;
    default: return std::nullopt;
  }
}

// Its memory is its elements in order; conjugate and negative views hold others.
bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

std::string supported() {
  std::string list;
  for (int i = 0; i < kDTypeCount; ++i) list += (i ? ", " : "") + std::string(name_of(static_cast<DType>(i)));
  return list;
}

}  // namespace

DType checked_dtype(const at::Tensor& tensor, const char* call) {
  const std::string who = std::string(call) + ": ";
  if (!tensor.device().is_cpu() && core_of(tensor.device().type()) == nullptr) {
    refuse(who + "the tensor is on " + tensor.device().str() +
           ", and this build of ringdp moves CPU tensors only: use backend=\"cpu:ringdp,cuda:nccl\"");
  }
  if (tensor.layout() != at::kStrided) {
    refuse(who + "of sparse tensors only COO ones can be all_reduced: pass tensor.to_dense()");
  }
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) {
    refuse(who + "dtype " + c10::toString(tensor.scalar_type()) + " is not supported: use one of " + supported());
  }
  return *dtype;
}

void check_writable(const at::Tensor& tensor, const char* call) {
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  refuse(std::string(call) + ": elements of the tensor to be written share memory (expand?): pass tensor.contiguous()");
}

at::Tensor single(const std::vector<at::Tensor>& tensors, const char* call) {
  if (tensors.size() != 1) {
    refuse(std::string(call) + ": takes one tensor per rank, got " + std::to_string(tensors.size()));
  }
  return tensors[0];
}

void check_same_dtype(const at::Tensor& a, const at::Tensor& b, const char* call) {
  if (a.scalar_type() == b.scalar_type()) return;
  refuse(std::string(call) + ": one tensor is " + c10::toString(a.scalar_type()) + ", another is " +
         c10::toString(b.scalar_type()) + ": they must be equal");
}

void check_numel(const at::Tensor& tensor, int64_t wanted, const char* call, const char* which) {
  if (tensor.numel() == wanted) return;
  refuse(std::string(call) + ": " + which + " has " + std::to_string(tensor.numel()) + " elements, wanted " +
         std::to_string(wanted));
}

DType checked_list(const std::vector<at::Tensor>& tensors, const char* call) {
  for (const at::Tensor& tensor : tensors) {
    checked_dtype(tensor, call);
    check_same_dtype(tensors[0], tensor, call);
  }
  return checked_dtype(tensors[0], call);
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  at::Tensor all = at::empty({count}, tensors[0].options());
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    copy_back(flat(tensor).view({-1}), part_of(all, begin, tensor.numel()));
    begin += tensor.numel();
  }
  return all;
}

void copy_apart(const at::Tensor& joined, const std::vector<at::Tensor>& tensors) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    copy_back(part_of(joined, begin, tensor.numel()).view(tensor.sizes()), tensor);
    begin += tensor.numel();
  }
}

void check_pairs(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* call) {
  if (outputs.size() == inputs.size()) return;
  refuse(std::string(call) + ": got " + std::to_string(outputs.size()) + " outputs for " +
         std::to_string(inputs.size()) + " inputs");
}

std::vector<at::Tensor> equal_parts(const at::Tensor& tensor, int parts) {
  return tensor.view({-1}).tensor_split(parts);
}

void set_parts(comm::OpDesc& desc, const std::vector<at::Tensor>& parts) {
  std::vector<int64_t> counts;
  for (const at::Tensor& part : parts) counts.push_back(part.numel());
  desc.count = counts[0];
  const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
  if (!even) desc.counts = counts;
}

at::Tensor flat(const at::Tensor& tensor) {
  if (is_plain(tensor)) return tensor;
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

at::Tensor flat_target(const at::Tensor& tensor, const char* call) {
  check_writable(tensor, call);
  if (is_plain(tensor)) return tensor;
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

void copy_back(const at::Tensor& target, at::Tensor tensor) {
  if (target.is_same(tensor)) return;
  const c10::AutoGradMode no_grad(false);
  tensor.detach().copy_(target);
}

at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.view({-1}).narrow(0, begin, count);
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a0 = static_cast<const char*>(a.const_data_ptr());
  const auto* b0 = static_cast<const char*>(b.const_data_ptr());
  return a0 < b0 + b.nbytes() && b0 < a0 + a.nbytes();
}

}  // namespace ringdp::backend
