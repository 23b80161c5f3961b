#include "reducer/fold_shards.h"

#include <ATen/ATen.h>

#include "backend/errors.h"
#include "backend/tensors.h"
#include "kernels/fold.h"

namespace ringdp::reducer {
namespace {

at::Tensor fold_on_cpu(const at::Tensor& shards, double divisor) {
  std::vector<const void*> sources;
  for (int64_t rank = 0; rank < shards.size(0); ++rank) sources.push_back(shards[rank].data_ptr());
  const at::Tensor own = shards[0];
  void* const target = own.data_ptr();
  kernels::FoldArgs args;
  args.srcs = sources.data();
  args.n_srcs = static_cast<int>(sources.size());
  args.dsts = &target;
  args.n_dsts = 1;
  args.count = own.numel();
  args.dtype = backend::checked_dtype(shards, "mean");
  args.divisor = divisor;
  backend::guarded([&] { kernels::fold(args); });
  return own;
}

}  // namespace

at::Tensor fold_shards(const at::Tensor& shards, double divisor) {
  if (shards.device().is_cpu()) return fold_on_cpu(shards, divisor);
  const auto dtype = shards.scalar_type();
  at::Tensor sum = at::isReducedFloatingType(dtype) ? shards[0].to(at::kFloat) : shards[0];
  for (int64_t rank = 1; rank < shards.size(0); ++rank) sum.add_(shards[rank]);
  return sum.div_(divisor).to(dtype);
}

}  // namespace ringdp::reducer
