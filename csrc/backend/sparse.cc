// all_reduce of sparse COO tensors: everyone gathers everyone's indices and values, and adds them up in rank order.
//
// The sizes are exchanged before the call returns; the rest is asynchronous. 16-bit floats are added in float32.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "backend/backend.h"
#include "backend/errors.h"
#include "backend/reduce_op.h"
#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

using Tensors = std::vector<at::Tensor>;

// sparse_dim, nnz, then the sizes: what ranks must know of each other before they gather.
at::Tensor shape_of(const at::Tensor& tensor) {
  std::vector<int64_t> numbers{tensor.sparse_dim(), tensor._nnz()};
  numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  return at::tensor(numbers, at::kLong);
}

void check_equal_shapes(const at::Tensor& shapes) {
  for (int64_t rank = 1; rank < shapes.size(0); ++rank) {
    for (int64_t i = 0; i < shapes.size(1); ++i) {
      if (i == 1 || shapes[rank][i].item<int64_t>() == shapes[0][i].item<int64_t>()) continue;
      refuse("all_reduce: sparse tensors differ: rank " + std::to_string(rank) +
             " has another size or number of sparse dimensions than rank 0; nothing was reduced");
    }
  }
}

// What torch can add up when it is sparse.
bool can_add(at::ScalarType type) {
  return type != at::kBool && type != at::kUInt16 && type != at::kUInt32 && type != at::kUInt64;
}

void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const std::string who = "all_reduce of a sparse tensor: ";
  if (op.op_ != c10d::ReduceOp::SUM) refuse(who + "it can be summed only: use SUM");
  if (!tensor.device().is_cpu()) refuse(who + "it is on " + tensor.device().str() + ", not on the CPU");
  if (!can_add(tensor.scalar_type())) {
    refuse(who + "torch cannot add " + c10::toString(tensor.scalar_type()) + " there: convert it to int64 or a float");
  }
  checked_op(op, checked_dtype(tensor._values(), "all_reduce"), "all_reduce");
}

at::Tensor sum_in_rank_order(const Tensors& indices, const Tensors& values, const at::Tensor& like) {
  const auto wide = at::isReducedFloatingType(like.scalar_type()) ? at::kFloat : like.scalar_type();
  at::Tensor sum;
  for (size_t rank = 0; rank < indices.size(); ++rank) {
    const at::Tensor part = at::sparse_coo_tensor(indices[rank], values[rank].to(wide), like.sizes(),
                                                  at::TensorOptions().dtype(wide), /*is_coalesced=*/true);
    sum = rank == 0 ? part : at::add(sum, part).coalesce();
  }
  return sum.to(like.scalar_type());
}

// Everyone's shapes, by rank. Blocks: the buffers for the rest depend on them.
at::Tensor gather_shapes(Backend& backend, const at::Tensor& own, std::chrono::milliseconds timeout) {
  at::Tensor shape = shape_of(own), shapes = at::empty({backend.getSize(), shape.numel()}, at::kLong);
  c10d::AllgatherOptions blocking;
  blocking.timeout = timeout;
  blocking.asyncOp = false;
  backend._allgather_base(shapes, shape, blocking)->wait();
  check_equal_shapes(shapes);
  return shapes;
}

}  // namespace

Backend::WorkPtr Backend::reduce_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  check_sparse(tensor, opts.reduceOp);
  const c10::AutoGradMode no_grad(false);
  const at::Tensor own = tensor.detach().coalesce();
  const at::Tensor shapes = gather_shapes(*this, own, opts.timeout);
  Tensors indices, values;
  for (int rank = 0; rank < getSize(); ++rank) {
    const int64_t nnz = shapes[rank][1].item<int64_t>();
    std::vector<int64_t> of_values = own.values().sizes().vec();
    of_values[0] = nnz;
    indices.push_back(at::empty({own.sparse_dim(), nnz}, at::kLong));
    values.push_back(at::empty(of_values, own.values().options()));
  }
  c10d::AllgatherOptions gathering;
  gathering.timeout = opts.timeout;
  gathering.asyncOp = opts.asyncOp;
  Lists all_indices{indices};
  Tensors own_indices{own.indices()};
  allgather(all_indices, own_indices, gathering);

  Call call{c10d::OpType::_ALLREDUCE_SPARSE, "ringdp:all_reduce", {}, {}, {}, flat_result({tensor}), memory(),
            opts.timeout, opts.asyncOp};
  call.desc.what = plan::Collective::kAllGather;
  set_parts(call.desc, values);
  // Collectives of a group end in order: when the values are here, the indices are.
  const auto add_up = [indices, values, result = tensor]() mutable {
    const c10::AutoGradMode no_grad(false);
    const c10::InferenceMode inference(result.is_inference());
    result.copy_(sum_in_rank_order(indices, values, result));  // not of a detached one: copy_ replaces its parts
  };
  call.memory.then(add_up, {tensor});
  return gather_into(values, own.values(), std::move(call));
}

}  // namespace ringdp::backend
