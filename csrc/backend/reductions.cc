// The backend's reductions: all_reduce, reduce, reduce_scatter and what is coalesced of them.
#include <ATen/ATen.h>

#include "backend/backend.h"
#include "backend/batch.h"
#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/reduce_op.h"
#include "backend/tensors.h"

namespace ringdp::backend {

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor tensor = single(tensors, "all_reduce");
  if (tensor.layout() == at::kSparse) return reduce_sparse(tensor, opts);
  return reduce_all(tensor, opts.reduceOp, 0, opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::reduce_all(const at::Tensor& tensor, const c10d::ReduceOp& op, double divisor,
                                     std::chrono::milliseconds timeout, bool asynchronous, DigestsPtr digests) {
  comm::OpDesc desc;
  desc.what = plan::Collective::kAllReduce;
  desc.dtype = checked_dtype(tensor, "all_reduce");
  desc.op = checked_op(op, desc.dtype, "all_reduce");
  desc.count = tensor.numel();
  desc.divisor = divisor;
  const Tensors list{tensor};
  Call call{c10d::OpType::ALLREDUCE, "ringdp:all_reduce", desc, {}, list, flat_result(list), memory(), timeout,
            asynchronous, std::move(digests)};
  if (divisor != 0) call.alike = tensor;  // as reduce_div() promises
  place(call, tensor.device());
  const at::Tensor both = call.memory.update(premultiplied(tensor, op, "all_reduce"), tensor, "all_reduce");
  call.buffers = {{both.data_ptr()}, {both.data_ptr()}};
  return run(std::move(call));
}

Backend::WorkPtr Backend::reduce_div(const at::Tensor& tensor, double divisor, bool asynchronous, DigestsPtr digests) {
  check_divisor(divisor, "reduce_div");
  return reduce_all(tensor, c10d::ReduceOp::AVG, divisor, c10d::kUnsetTimeout, asynchronous, std::move(digests));
}

// One collective over all tensors laid end to end: many small ones cost what one costs.
Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  const char* const name = "all_reduce_coalesced";
  if (tensors.empty()) return c10::make_intrusive<BatchWork>(getRank(), std::vector<WorkPtr>{});
  comm::OpDesc desc;
  desc.what = plan::Collective::kAllReduce;
  desc.dtype = checked_list(tensors, name);
  for (const at::Tensor& tensor : tensors) check_writable(tensor, name);
  desc.op = checked_op(opts.reduceOp, desc.dtype, name);
  const at::Tensor all = premultiplied(joined(tensors), opts.reduceOp, name);
  desc.count = all.numel();
  Call call{c10d::OpType::ALLREDUCE_COALESCED, "ringdp:all_reduce", desc, {}, tensors, flat_result(tensors), memory(),
            opts.timeout, opts.asyncOp};
  place(call, all.device());
  const at::Tensor both = call.memory.update(all, all, name);
  call.buffers = {{both.data_ptr()}, {both.data_ptr()}};
  call.memory.then([all, tensors] { copy_apart(all, tensors); }, tensors);
  return run(std::move(call));
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor tensor = single(tensors, "reduce");
  check_rank(opts.rootRank, "root", "reduce");
  comm::OpDesc desc;
  desc.what = plan::Collective::kReduce;
  desc.dtype = checked_dtype(tensor, "reduce");
  desc.op = checked_op(opts.reduceOp, desc.dtype, "reduce");
  desc.root = static_cast<int32_t>(opts.rootRank);
  desc.count = tensor.numel();
  Call call{c10d::OpType::REDUCE, "ringdp:reduce", desc, {}, tensors, flat_result(tensors), memory(), opts.timeout,
            opts.asyncOp};
  place(call, tensor.device());
  const at::Tensor own = premultiplied(tensor, opts.reduceOp, "reduce");
  if (getRank() == opts.rootRank) {
    const at::Tensor both = call.memory.update(own, tensor, "reduce");
    call.buffers = {{both.data_ptr()}, {both.data_ptr()}};
  } else {
    call.buffers.inputs = {call.memory.read(own).data_ptr()};
  }
  return run(std::move(call));
}

// `inputs`: one tensor per rank, of its part; the output is as large as the own one.
Backend::WorkPtr Backend::scatter_from(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                                       Call call) {
  const char* const name = "reduce_scatter";
  call.desc.what = plan::Collective::kReduceScatter;
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
  Call call{c10d::OpType::REDUCE_SCATTER, "ringdp:reduce_scatter", {}, {}, parts, flat_result(outputs), memory(),
            opts.timeout, opts.asyncOp};
  return scatter_from(output, parts, opts.reduceOp, std::move(call));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  Call call{c10d::OpType::_REDUCE_SCATTER_BASE, "ringdp:_reduce_scatter_base", {}, {}, {input}, flat_result({output}),
            memory(), opts.timeout, opts.asyncOp};
  return scatter_flat(output, input, opts.reduceOp, std::move(call), "reduce_scatter_tensor");
}

// `input`: everyone's parts in one tensor. `name` is for messages.
Backend::WorkPtr Backend::scatter_flat(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
                                       Call call, const char* name) {
  checked_dtype(input, name);
  check_numel(input, output.numel() * getSize(), name, "the input");
  return scatter_from(output, equal_parts(flat(input), getSize()), op, std::move(call));
}

Backend::WorkPtr Backend::reduce_scatter_div(const at::Tensor& output, const at::Tensor& input, double divisor,
                                             bool asynchronous, OnResult on_result, DigestsPtr digests) {
  check_divisor(divisor, "reduce_scatter_div");
  if (on_result && !output.device().is_cpu()) {
    refuse("reduce_scatter_div: parts are told of as they come on the CPU only: pass no on_result for " +
           output.device().str());
  }
  Call call{c10d::OpType::_REDUCE_SCATTER_BASE, "ringdp:_reduce_scatter_base", {}, {}, {input}, flat_result({output}),
            memory(), c10d::kUnsetTimeout, asynchronous, std::move(digests)};
  call.desc.divisor = divisor;
  call.buffers.on_result = std::move(on_result);
  return scatter_flat(output, input, c10d::ReduceOp::AVG, std::move(call), "reduce_scatter_div");
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  const auto one = [&](at::Tensor& output, at::Tensor& input) { return _reduce_scatter_base(output, input, opts); };
  return each_pair(outputs, inputs, "reduce_scatter_tensor_coalesced", one);
}

}  // namespace ringdp::backend
