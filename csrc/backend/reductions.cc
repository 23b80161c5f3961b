// The backend's reductions: all_reduce (dense and sparse), reduce, reduce_scatter, and their coalesced forms.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "backend/backend.h"
#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

using Tensors = std::vector<at::Tensor>;

// sparse_dim, nnz, then the sizes: what ranks must know about each other before they gather.
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

// Whether torch can add sparse tensors of this type.
bool can_add(at::ScalarType type) {
  return type != at::kBool && type != at::kUInt16 && type != at::kUInt32 && type != at::kUInt64;
}

void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const std::string prefix = "all_reduce of a sparse tensor: ";
  if (op.op_ != c10d::ReduceOp::SUM) refuse(prefix + "it can be summed only: use SUM");
  if (!tensor.device().is_cpu()) refuse(prefix + "it is on " + tensor.device().str() + ", not on the CPU");
  if (!can_add(tensor.scalar_type())) {
    refuse(prefix + "torch cannot add " + c10::toString(tensor.scalar_type()) +
           " there: convert it to int64 or a float");
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

// The shapes of all ranks, by rank. Blocks, because the sizes of further buffers depend on them.
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

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor tensor = single(tensors, "all_reduce");
  if (tensor.layout() == at::kSparse) return reduce_sparse(tensor, opts);
  return reduce_all(tensor, tensor, opts);
}

Backend::WorkPtr Backend::reduce_all(const at::Tensor& output, const at::Tensor& input,
                                     const c10d::AllreduceOptions& opts, double divisor, DigestsPtr digests) {
  const char* const name = "all_reduce";
  Call call = make_call(c10d::OpType::ALLREDUCE, "ringdp:all_reduce", Collective::kAllReduce, {input},
                        flat_result({output}), opts);
  call.desc.dtype = checked_dtype(input, name);
  call.desc.op = checked_op(opts.reduceOp, call.desc.dtype, name);
  call.desc.count = input.numel();
  call.desc.divisor = divisor;
  call.digests = std::move(digests);
  const bool in_place = output.is_same(input);
  if (divisor != 0 && in_place) call.same_place = input;  // as reduce_div() promises
  check_same_dtype(input, output, name);
  check_numel(output, input.numel(), name, "the output");
  place(call, input.device());
  const at::Tensor own = premultiplied(input, opts.reduceOp, name);
  if (in_place) {
    const at::Tensor both = call.memory.update(own, output, name);
    return run_in_place(std::move(call), both);
  }
  call.buffers.inputs = {call.memory.read(own).data_ptr()};
  call.buffers.outputs = {call.memory.write(output, name).data_ptr()};
  return run(std::move(call));
}

Backend::WorkPtr Backend::reduce_div(const at::Tensor& output, const at::Tensor& input, double divisor,
                                     bool asynchronous, DigestsPtr digests) {
  check_divisor(divisor, "reduce_div");
  c10d::AllreduceOptions opts;
  opts.reduceOp = c10d::ReduceOp::AVG;
  opts.asyncOp = asynchronous;
  return reduce_all(output, input, opts, divisor, std::move(digests));
}

// One collective over all tensors laid end to end: many small ones cost what one costs.
Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  const char* const name = "all_reduce_coalesced";
  if (tensors.empty()) return c10::make_intrusive<BatchWork>(getRank(), std::vector<WorkPtr>{});
  Call call = make_call(c10d::OpType::ALLREDUCE_COALESCED, "ringdp:all_reduce", Collective::kAllReduce, tensors,
                        flat_result(tensors), opts);
  call.desc.dtype = checked_list(tensors, name);
  for (const at::Tensor& tensor : tensors) check_writable(tensor, name);
  call.desc.op = checked_op(opts.reduceOp, call.desc.dtype, name);
  const at::Tensor all = premultiplied(joined(tensors), opts.reduceOp, name);
  call.desc.count = all.numel();
  place(call, all.device());
  const at::Tensor both = call.memory.update(all, all, name);
  call.memory.then([all, tensors] { copy_apart(all, tensors); }, tensors);
  return run_in_place(std::move(call), both);
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor tensor = single(tensors, "reduce");
  Call call =
      make_call(c10d::OpType::REDUCE, "ringdp:reduce", Collective::kReduce, tensors, flat_result(tensors), opts);
  const bool root = set_root(call.desc, opts.rootRank, "reduce");
  call.desc.dtype = checked_dtype(tensor, "reduce");
  call.desc.op = checked_op(opts.reduceOp, call.desc.dtype, "reduce");
  call.desc.count = tensor.numel();
  place(call, tensor.device());
  const at::Tensor own = premultiplied(tensor, opts.reduceOp, "reduce");
  if (root) {
    const at::Tensor both = call.memory.update(own, tensor, "reduce");
    return run_in_place(std::move(call), both);
  }
  call.buffers.inputs = {call.memory.read(own).data_ptr()};
  return run(std::move(call));
}

// `inputs`: one tensor per rank with its part; the output is as large as the own one.
Backend::WorkPtr Backend::scatter_from(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                                       Call call) {
  const char* const name = "reduce_scatter";
  call.desc.dtype = checked_dtype(output, name);
  call.desc.op = checked_op(op, call.desc.dtype, name);
  check_numel(output, inputs[getRank()].numel(), name, "the output");
  set_parts(call.desc, inputs);
  place(call, output.device());
  at::Tensor own_part;
  for (int rank = 0; rank < getSize(); ++rank) {
    const at::Tensor& input = inputs[rank];
    checked_dtype(input, name);
    check_same_dtype(input, output, name);
    const at::Tensor source = call.memory.read(premultiplied(input, op, name));
    if (rank == getRank()) own_part = source;
    call.buffers.inputs.push_back(source.data_ptr());
  }
  // The result may lie on the own part; on any other it would overwrite what is still being sent.
  call.buffers.outputs = {call.memory.write(output, name, own_part).data_ptr()};
  return run(std::move(call));
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) {
  const at::Tensor output = single(outputs, "reduce_scatter");
  const Tensors& parts = one_per_rank(inputs, "reduce_scatter", "input");
  Call call = make_call(c10d::OpType::REDUCE_SCATTER, "ringdp:reduce_scatter", Collective::kReduceScatter, parts,
                        flat_result(outputs), opts);
  return scatter_from(output, parts, opts.reduceOp, std::move(call));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  return scatter_flat(output, input, opts, "reduce_scatter_tensor");
}

// `input`: the parts of all ranks in one tensor. `name` is for messages.
Backend::WorkPtr Backend::scatter_flat(const at::Tensor& output, const at::Tensor& input,
                                       const c10d::ReduceScatterOptions& opts, const char* name, double divisor,
                                       OnResult on_result, DigestsPtr digests) {
  Call call = make_call(c10d::OpType::_REDUCE_SCATTER_BASE, "ringdp:_reduce_scatter_base", Collective::kReduceScatter,
                        {input}, flat_result({output}), opts);
  call.desc.divisor = divisor;
  call.buffers.on_result = std::move(on_result);
  call.digests = std::move(digests);
  checked_dtype(input, name);
  check_numel(input, output.numel() * getSize(), name, "the input");
  return scatter_from(output, equal_parts(flat(input), getSize()), opts.reduceOp, std::move(call));
}

Backend::WorkPtr Backend::reduce_scatter_div(const at::Tensor& output, const at::Tensor& input, double divisor,
                                             bool asynchronous, OnResult on_result, DigestsPtr digests) {
  check_divisor(divisor, "reduce_scatter_div");
  if (on_result && !output.device().is_cpu()) {
    refuse("reduce_scatter_div: on_result works on the CPU only: pass none for " + output.device().str());
  }
  c10d::ReduceScatterOptions opts;
  opts.reduceOp = c10d::ReduceOp::AVG;
  opts.asyncOp = asynchronous;
  return scatter_flat(output, input, opts, "reduce_scatter_div", divisor, std::move(on_result), std::move(digests));
}

Backend::WorkPtr Backend::reduce_roots(const at::Tensor& output, const Tensors& inputs, plan::RootsPtr roots,
                                       double divisor, bool scatters, bool asynchronous) {
  const char* const name = "reduce_roots";
  check_divisor(divisor, name);
  if (!output.device().is_cpu()) refuse("reduce_roots: works on the CPU only, not on " + output.device().str());
  c10d::AllreduceOptions opts;
  opts.asyncOp = asynchronous;
  const auto& by_rank = roots->by_rank;
  if (by_rank.size() != static_cast<size_t>(getSize()) || by_rank[getRank()].size() != inputs.size()) {
    refuse("reduce_roots: " + std::to_string(inputs.size()) + " tensors, or roots of " +
           std::to_string(by_rank.size()) + " ranks: give this rank's, of " + std::to_string(getSize()));
  }
  const Collective what = scatters ? Collective::kReduceScatter : Collective::kAllReduce;
  Call call = make_call(scatters ? c10d::OpType::_REDUCE_SCATTER_BASE : c10d::OpType::ALLREDUCE, "ringdp:reduce_roots",
                        what, inputs, flat_result({output}), opts);
  call.desc.dtype = checked_dtype(output, name);
  call.desc.op = checked_op(c10d::ReduceOp::AVG, call.desc.dtype, name);
  call.desc.count = output.numel();
  call.desc.divisor = divisor;
  call.desc.roots = std::move(roots);
  const int parts = scatters ? getSize() : 1;
  for (const at::Tensor& input : inputs) {
    check_same_dtype(input, output, name);
    check_numel(input, output.numel() * parts, name, "an input");
    for (const at::Tensor& part : equal_parts(call.memory.read(input), parts)) {
      call.buffers.inputs.push_back(part.data_ptr());
    }
  }
  call.buffers.outputs = {call.memory.write(output, name).data_ptr()};
  return run(std::move(call));
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  const auto one = [&](at::Tensor& output, at::Tensor& input) { return _reduce_scatter_base(output, input, opts); };
  return each_pair(outputs, inputs, "reduce_scatter_tensor_coalesced", one);
}

// all_reduce of sparse COO tensors: all ranks gather the indices and values of all ranks, and add them up in rank
// order. The sizes are exchanged before the call returns; the rest is asynchronous. 16-bit floats are added in float32.
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
  end_event(*allgather(all_indices, own_indices, gathering));  // nobody waits for it

  Call call = make_call(c10d::OpType::_ALLREDUCE_SPARSE, "ringdp:all_reduce", Collective::kAllGather, {},
                        flat_result({tensor}), opts);
  set_parts(call.desc, values);
  // Collectives of a group end in order: when the values are here, the indices are.
  const auto add_up = [indices, values, result = tensor]() mutable {
    const c10::AutoGradMode no_grad(false);
    const c10::InferenceMode inference(result.is_inference());
    result.copy_(sum_in_rank_order(indices, values, result));  // not into a detached tensor: copy_ replaces its parts
  };
  call.memory.then(add_up, {tensor});
  return gather_into(values, own.values(), std::move(call));
}

}  // namespace ringdp::backend
