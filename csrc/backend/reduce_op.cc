#include "backend/reduce_op.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "backend/errors.h"

namespace ringdp::backend {
namespace {

ReduceOp known_op(const c10d::ReduceOp& op, const char* call) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM: return ReduceOp::kSum;
    case c10d::ReduceOp::AVG: return ReduceOp::kAvg;
    case c10d::ReduceOp::MIN: return ReduceOp::kMin;
    case c10d::ReduceOp::MAX: return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::kProduct;
    case c10d::ReduceOp::BAND: return ReduceOp::kBand;
    case c10d::ReduceOp::BOR: return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR: return ReduceOp::kBxor;
    case c10d::ReduceOp::PREMUL_SUM: return ReduceOp::kPremulSum;
    default: refuse(std::string(call) + ": this reduce op is unknown to ringdp: use SUM, AVG, MIN, MAX or PRODUCT");
  }
}

std::string way_out(DType dtype) {
  if (!can_reduce(dtype, ReduceOp::kSum)) return "it can be moved, not computed in: convert it to bfloat16 or float32";
  return "use SUM, or another dtype";
}

}  // namespace

void check_divisor(double divisor, const char* call) {
  if (divisor != 0 && std::isfinite(divisor)) return;
  refuse(std::string(call) + ": divisor=" + std::to_string(divisor) + " must be finite and not 0");
}

ReduceOp checked_op(const c10d::ReduceOp& op, DType dtype, const char* call) {
  const ReduceOp known = known_op(op, call);
  if (can_reduce(dtype, known)) return known;
  refuse(std::string(call) + ": " + name_of(known) + " of " + name_of(dtype) + " has no meaning here: " +
         way_out(dtype));
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
