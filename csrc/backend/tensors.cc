#include "backend/tensors.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "backend/errors.h"
#include "device/torch/device_collectives.h"

namespace ringdp::backend {
namespace {

constexpr std::pair<at::ScalarType, DType> kDTypes[] = {
    {at::kByte, DType::kU8},
    {at::kChar, DType::kI8},
    {at::kUInt16, DType::kU16},
    {at::kShort, DType::kI16},
    {at::kUInt32, DType::kU32},
    {at::kInt, DType::kI32},
    {at::kUInt64, DType::kU64},
    {at::kLong, DType::kI64},
    {at::kHalf, DType::kF16},
    {at::kBFloat16, DType::kBF16},
    {at::kFloat, DType::kF32},
    {at::kDouble, DType::kF64},
    {at::kComplexFloat, DType::kC64},
    {at::kComplexDouble, DType::kC128},
    {at::kBool, DType::kBool},
    {at::kFloat8_e4m3fn, DType::kF8E4M3FN},
    {at::kFloat8_e5m2, DType::kF8E5M2},
    {at::kFloat8_e4m3fnuz, DType::kF8E4M3FNUZ},
    {at::kFloat8_e5m2fnuz, DType::kF8E5M2FNUZ},
    {at::kFloat8_e8m0fnu, DType::kF8E8M0FNU},
};

std::optional<DType> dtype_of(at::ScalarType type) {
  for (const auto& [theirs, ours] : kDTypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

// Its memory is its elements in order; conjugate and negative views hold others.
bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

std::string supported() {
  std::string list;
  for (int i = 0; i < kDTypeCount; ++i) list += (i ? ", " : "") + std::string(name_of(static_cast<DType>(i)));
  return list;
}

constexpr std::pair<c10d::ReduceOp::RedOpType, ReduceOp> kReduceOps[] = {
    {c10d::ReduceOp::SUM, ReduceOp::kSum},
    {c10d::ReduceOp::AVG, ReduceOp::kAvg},
    {c10d::ReduceOp::MIN, ReduceOp::kMin},
    {c10d::ReduceOp::MAX, ReduceOp::kMax},
    {c10d::ReduceOp::PRODUCT, ReduceOp::kProduct},
    {c10d::ReduceOp::BAND, ReduceOp::kBand},
    {c10d::ReduceOp::BOR, ReduceOp::kBor},
    {c10d::ReduceOp::BXOR, ReduceOp::kBxor},
    {c10d::ReduceOp::PREMUL_SUM, ReduceOp::kPremulSum},
};

ReduceOp known_op(const c10d::ReduceOp& op, const char* call) {
  for (const auto& [theirs, ours] : kReduceOps) {
    if (theirs == op.op_) return ours;
  }
  refuse(std::string(call) + ": ringdp does not support this reduce op: use SUM, AVG, MIN, MAX or PRODUCT");
}

std::string way_out(DType dtype) {
  if (!can_reduce(dtype, ReduceOp::kSum))
    return "this dtype can be sent but not reduced; convert to bfloat16 or float32";
  return "use SUM, or another dtype";
}

}  // namespace

DType checked_dtype(const at::Tensor& tensor, const char* call) {
  const std::string prefix = std::string(call) + ": ";
  if (!tensor.device().is_cpu() && !is_served(tensor.device().type())) {
    refuse(prefix + "the tensor is on " + tensor.device().str() +
           ", and this build of ringdp moves CPU tensors only: use backend=\"cpu:ringdp,cuda:nccl\"");
  }
  if (tensor.layout() != at::kStrided) {
    refuse(prefix + "sparse tensors are supported by all_reduce only, in COO layout: pass tensor.to_dense()");
  }
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) {
    refuse(prefix + "dtype " + c10::toString(tensor.scalar_type()) + " is not supported: use one of " + supported());
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
  refuse(std::string(call) + ": " + which + " has " + std::to_string(tensor.numel()) + " elements, expected " +
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

void check_divisor(double divisor, const char* call) {
  if (divisor != 0 && std::isfinite(divisor)) return;
  refuse(std::string(call) + ": divisor=" + std::to_string(divisor) + " must be finite and not 0");
}

ReduceOp checked_op(const c10d::ReduceOp& op, DType dtype, const char* call) {
  const ReduceOp known = known_op(op, call);
  if (can_reduce(dtype, known)) return known;
  refuse(std::string(call) + ": " + name_of(known) + " of " + name_of(dtype) + " is not supported: " + way_out(dtype));
}

at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* call) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) {
    refuse(std::string(call) + ": PREMUL_SUM needs its factor: make it with torch.distributed._make_nccl_premul_sum");
  }
  const c10::AutoGradMode no_grad(false);
  if (!factor->tensor_factor.defined()) return at::mul(tensor, factor->double_factor);
  // As a number: a factor of shape [1] must neither give a 0-dim tensor another shape nor promote its dtype.
  return at::mul(tensor, factor->tensor_factor.reshape({})).to(tensor.scalar_type());
}

}  // namespace ringdp::backend
