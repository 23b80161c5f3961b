#include "backend/backend.h"

#include <ATen/ATen.h>

#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/gil.h"
#include "backend/process.h"
#include "backend/profile.h"
#include "backend/store_adapter.h"
#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

ReduceOp reduce_op(const c10d::ReduceOp& op, DType dtype, const char* call) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM: return ReduceOp::kSum;
    case c10d::ReduceOp::MIN: return ReduceOp::kMin;
    case c10d::ReduceOp::MAX: return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::kProduct;
    case c10d::ReduceOp::AVG:
      if (is_floating(dtype)) return ReduceOp::kAvg;
      refuse(std::string(call) + ": AVG of " + name_of(dtype) + " has no exact result: use SUM and divide as you see fit");
    default: refuse(std::string(call) + ": this reduce op is not supported: use SUM, AVG, MIN, MAX or PRODUCT");
  }
}

c10::TypePtr list_of_tensors() { return c10::ListType::create(c10::TensorType::get()); }

std::vector<at::Tensor> equal_parts(const at::Tensor& tensor, int parts) {
  return tensor.view({-1}).tensor_split(parts);
}

}  // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& name,
                 c10::intrusive_ptr<GroupOptions> options)
    : c10d::Backend(rank, size), options_(std::move(options)) {
  guarded([&] {
    StoreAdapter adapter(std::move(store));
    group_ = comm::Group::create(runtime(), adapter, {name, rank, size, options_->settings()},
                                 Deadline::after(options_->timeout));
  });
  init();
}

Backend::~Backend() {
  const ReleaseGil release;  // a finishing collective may drop a tensor, which needs it
  group_->leave();
}

Backend::WorkPtr Backend::run(Call call) {
  return guarded([&] {
    record_param_comms(call.title, *this, call.inputs, call.result.tensors);
    auto work = c10::make_intrusive<Work>(getRank(), call.type, call.title, call.inputs, std::move(call.result),
                                          std::move(call.keep), completion());
    comm::Request request;
    request.desc = call.desc;
    request.buffers = std::move(call.buffers);
    request.deadline = Deadline::after(call.timeout == c10d::kUnsetTimeout ? options_->timeout : call.timeout);
    request.asynchronous = call.asynchronous;
    request.epilogue = std::move(call.epilogue);
    request.on_done = [work](std::exception_ptr error) { work->on_done(std::move(error)); };
    work->attach(group_, group_->submit(std::move(request)));
    return WorkPtr(work);
  });
}

Backend::WorkPtr Backend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor tensor = single(tensors, "all_reduce");
  comm::OpDesc desc;
  desc.what = plan::Collective::kAllReduce;
  desc.dtype = checked_dtype(tensor, "all_reduce");
  desc.op = reduce_op(opts.reduceOp, desc.dtype, "all_reduce");
  desc.count = tensor.numel();
  const at::Tensor memory = flat(tensor);
  return run({c10d::OpType::ALLREDUCE, "ringdp:all_reduce", desc, {{memory.data_ptr()}, {memory.data_ptr()}}, tensors,
              {tensors, tensors, list_of_tensors()}, {memory}, [memory, tensor] { copy_back(memory, tensor); },
              opts.timeout, opts.asyncOp});
}

Backend::WorkPtr Backend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor tensor = single(tensors, "broadcast");
  if (opts.rootRank < 0 || opts.rootRank >= getSize()) {
    refuse("broadcast: root " + std::to_string(opts.rootRank) + " is no rank of this group of " + std::to_string(getSize()));
  }
  comm::OpDesc desc;
  desc.what = plan::Collective::kBroadcast;
  desc.dtype = checked_dtype(tensor, "broadcast");
  desc.root = static_cast<int32_t>(opts.rootRank);
  desc.count = tensor.numel();
  const at::Tensor memory = flat(tensor);
  return run({c10d::OpType::BROADCAST, "ringdp:broadcast", desc, {{memory.data_ptr()}, {memory.data_ptr()}}, tensors,
              {tensors, tensors, list_of_tensors()}, {memory}, [memory, tensor] { copy_back(memory, tensor); },
              opts.timeout, opts.asyncOp});
}

// `outputs`: one tensor per rank.
Backend::WorkPtr Backend::gather_into(std::vector<at::Tensor> outputs, const at::Tensor& input, Call call) {
  const char* const name = "all_gather";
  call.desc.what = plan::Collective::kAllGather;
  call.desc.dtype = checked_dtype(input, name);
  call.desc.count = input.numel();
  std::vector<at::Tensor> targets;
  at::Tensor source = flat(input);
  for (const at::Tensor& output : outputs) {
    check_same_dtype(input, output, name);
    checked_dtype(output, name);
    check_numel(output, input.numel(), name, "an output");
    targets.push_back(flat_target(output));
  }
  // The own part may lie in place; any other overlap would be overwritten while it is still being sent.
  const bool in_place = targets[getRank()].data_ptr() == source.data_ptr();
  for (int rank = 0; rank < getSize(); ++rank) {
    if (!(in_place && rank == getRank()) && overlap(source, targets[rank])) source = source.clone();
    call.buffers.outputs.push_back(targets[rank].data_ptr());
  }
  call.buffers.inputs = {source.data_ptr()};
  call.inputs = {input};
  call.keep = targets;
  call.keep.push_back(source);
  call.epilogue = [targets, outputs] {
    for (size_t i = 0; i < outputs.size(); ++i) copy_back(targets[i], outputs[i]);
  };
  return run(std::move(call));
}

Backend::WorkPtr Backend::allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                    const c10d::AllgatherOptions& opts) {
  const at::Tensor input = single(inputs, "all_gather");
  if (outputs.size() != 1 || outputs[0].size() != static_cast<size_t>(getSize())) {
    refuse("all_gather: wants one list of " + std::to_string(getSize()) + " output tensors (one per rank), got " +
           std::to_string(outputs.empty() ? 0 : outputs[0].size()));
  }
  Call call{c10d::OpType::ALLGATHER, "ringdp:all_gather", {}, {}, {}, {outputs[0], outputs, c10::ListType::create(list_of_tensors())},
            {}, {}, opts.timeout, opts.asyncOp};
  return gather_into(outputs[0], input, std::move(call));
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  checked_dtype(output, "all_gather_into_tensor");
  check_numel(output, input.numel() * getSize(), "all_gather_into_tensor", "the output");
  const at::Tensor target = flat_target(output);
  const std::vector<at::Tensor> list{output};
  Call call{c10d::OpType::_ALLGATHER_BASE, "ringdp:_all_gather_base", {}, {}, {}, {list, list, list_of_tensors()},
            {}, {}, opts.timeout, opts.asyncOp};
  if (target.is_same(output)) return gather_into(equal_parts(target, getSize()), input, std::move(call));
  refuse("all_gather_into_tensor: the output must be contiguous");
}

// `inputs`: one tensor per rank.
Backend::WorkPtr Backend::scatter_from(const at::Tensor& output, std::vector<at::Tensor> inputs, const c10d::ReduceOp& op,
                                       Call call) {
  const char* const name = "reduce_scatter";
  call.desc.what = plan::Collective::kReduceScatter;
  call.desc.dtype = checked_dtype(output, name);
  call.desc.op = reduce_op(op, call.desc.dtype, name);
  call.desc.count = output.numel();
  at::Tensor target = flat_target(output);
  for (int rank = 0; rank < getSize(); ++rank) {
    const at::Tensor& input = inputs[rank];
    checked_dtype(input, name);
    check_same_dtype(input, output, name);
    check_numel(input, output.numel(), name, "an input");
    const at::Tensor source = flat(input);
    // The result may lie on the own part; on any other it would overwrite what is still being sent.
    const bool in_place = rank == getRank() && source.data_ptr() == target.data_ptr();
    if (!in_place && overlap(source, target)) target = at::empty_like(target);
    call.buffers.inputs.push_back(source.data_ptr());
    call.keep.push_back(source);
  }
  call.buffers.outputs = {target.data_ptr()};
  call.keep.push_back(target);
  call.epilogue = [target, output] { copy_back(target, output); };
  return run(std::move(call));
}

Backend::WorkPtr Backend::reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  const at::Tensor output = single(outputs, "reduce_scatter");
  if (inputs.size() != 1 || inputs[0].size() != static_cast<size_t>(getSize())) {
    refuse("reduce_scatter: wants one list of " + std::to_string(getSize()) + " input tensors (one per rank), got " +
           std::to_string(inputs.empty() ? 0 : inputs[0].size()));
  }
  Call call{c10d::OpType::REDUCE_SCATTER, "ringdp:reduce_scatter", {}, {}, inputs[0], {outputs, outputs, list_of_tensors()},
            {}, {}, opts.timeout, opts.asyncOp};
  return scatter_from(output, inputs[0], opts.reduceOp, std::move(call));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  checked_dtype(input, "reduce_scatter_tensor");
  check_numel(input, output.numel() * getSize(), "reduce_scatter_tensor", "the input");
  const std::vector<at::Tensor> list{output};
  Call call{c10d::OpType::_REDUCE_SCATTER_BASE, "ringdp:_reduce_scatter_base", {}, {}, {input}, {list, list, list_of_tensors()},
            {}, {}, opts.timeout, opts.asyncOp};
  return scatter_from(output, equal_parts(flat(input), getSize()), opts.reduceOp, std::move(call));
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  comm::OpDesc desc;
  desc.what = plan::Collective::kBarrier;
  const std::vector<at::Tensor> none;
  return run({c10d::OpType::BARRIER, "ringdp:barrier", desc, {}, none, {none, none, list_of_tensors()}, {}, {},
              opts.timeout, opts.asyncOp});
}

c10d::ErrorType Backend::getError() {
  const auto error = group_->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  if (error->kind() == ErrorKind::kTimeout) return c10d::ErrorType::TIMEOUT;
  return error->kind() == ErrorKind::kPeerLost ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
}

void Backend::abort() {
  group_->fail(Error(ErrorKind::kAborted, "rank " + std::to_string(getRank()) + " aborted the process group"));
}

void Backend::shutdown() { group_->leave(); }

}  // namespace ringdp::backend
