// The backend's collectives that move values and change none: broadcast, gathers, scatter and all_to_all.
#include <ATen/ATen.h>

#include "backend/backend.h"
#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

// Elements for each rank: `splits` count rows of dimension 0; empty means equal parts.
std::vector<int64_t> elements_of(const at::Tensor& tensor, const std::vector<int64_t>& splits, int world,
                                 const char* which) {
  const std::string prefix = std::string("all_to_all_single: the ") + which;
  if (tensor.dim() == 0) refuse(prefix + " has no dimension to split: pass at least one");
  const int64_t rows = tensor.size(0), row = rows == 0 ? 0 : tensor.numel() / rows;
  if (splits.empty()) {
    if (rows % world != 0) {
      refuse(prefix + " has " + std::to_string(rows) + " rows, which " + std::to_string(world) +
             " ranks cannot share equally: pass " + which + "_split_sizes");
    }
    return std::vector<int64_t>(world, rows / world * row);
  }
  if (splits.size() != static_cast<size_t>(world)) {
    refuse(prefix + "_split_sizes has " + std::to_string(splits.size()) + " entries for " + std::to_string(world) +
           " ranks");
  }
  std::vector<int64_t> elements;
  int64_t sum = 0;
  for (const int64_t split : splits) {
    if (split < 0) refuse(prefix + "_split_sizes has a negative entry: " + std::to_string(split));
    elements.push_back(split * row);
    sum += split;
  }
  if (sum != rows) {
    refuse(prefix + "_split_sizes add up to " + std::to_string(sum) + ", dimension 0 has " + std::to_string(rows));
  }
  return elements;
}

std::vector<at::Tensor> cut(const at::Tensor& tensor, const std::vector<int64_t>& elements) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : elements) {
    parts.push_back(part_of(tensor, begin, count));
    begin += count;
  }
  return parts;
}

}  // namespace

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor tensor = single(tensors, "broadcast");
  Call call = make_call(c10d::OpType::BROADCAST, "ringdp:broadcast", Collective::kBroadcast, tensors,
                        flat_result(tensors), opts);
  const bool root = set_root(call.desc, opts.rootRank, "broadcast");
  call.desc.dtype = checked_dtype(tensor, "broadcast");
  call.desc.count = tensor.numel();
  place(call, tensor.device());
  const at::Tensor own = root ? call.memory.read(tensor) : call.memory.write(tensor, "broadcast");
  return run_in_place(std::move(call), own);
}

// Gathers into `outputs`, one tensor per rank, or none where this rank receives nothing.
Backend::WorkPtr Backend::gather_into(const Tensors& outputs, const at::Tensor& input, Call call) {
  const char* const name = plan::name_of(call.desc.what);
  call.desc.dtype = checked_dtype(input, name);
  place(call, input.device());
  const at::Tensor source = call.memory.read(input);
  call.buffers.inputs = {source.data_ptr()};
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    check_same_dtype(input, outputs[rank], name);
    checked_dtype(outputs[rank], name);
    // The own part may lie in place; any other overlap would be overwritten while it is still being sent.
    const at::Tensor in_place = rank == static_cast<size_t>(getRank()) ? source : at::Tensor();
    call.buffers.outputs.push_back(call.memory.write(outputs[rank], name, in_place).data_ptr());
  }
  if (call.inputs.empty()) call.inputs = {input};
  return run(std::move(call));
}

Backend::WorkPtr Backend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const at::Tensor input = single(inputs, "all_gather");
  const Tensors& parts = one_per_rank(outputs, "all_gather", "output");
  check_numel(parts[getRank()], input.numel(), "all_gather", "this rank's output");
  Call call =
      make_call(c10d::OpType::ALLGATHER, "ringdp:all_gather", Collective::kAllGather, {}, flat_result(parts), opts);
  set_parts(call.desc, parts);
  return gather_into(parts, input, std::move(call));
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  const char* const name = "all_gather_into_tensor";
  checked_dtype(output, name);
  check_same_dtype(input, output, name);
  check_numel(output, input.numel() * getSize(), name, "the output");
  if (!flat_target(output, name).is_same(output)) refuse(std::string(name) + ": the output must be contiguous");
  Call call = make_call(c10d::OpType::_ALLGATHER_BASE, "ringdp:_all_gather_base", Collective::kAllGather, {},
                        flat_result({output}), opts);
  call.desc.count = input.numel();
  return gather_into(equal_parts(output, getSize()), input, std::move(call));
}

Backend::WorkPtr Backend::gather_whole(const at::Tensor& whole, bool asynchronous) {
  const char* const name = "gather_whole";
  checked_dtype(whole, name);
  if (!whole.is_contiguous() || whole.numel() % getSize() != 0) {
    refuse(std::string(name) + ": expected a contiguous tensor whose number of elements is a multiple of " +
           std::to_string(getSize()) + " ranks, got " + std::to_string(whole.numel()) + " elements");
  }
  c10d::AllgatherOptions opts;
  opts.asyncOp = asynchronous;
  Call call = make_call(c10d::OpType::_ALLGATHER_BASE, "ringdp:_all_gather_base", Collective::kAllGather, {},
                        flat_result({whole}), opts);
  call.desc.count = whole.numel() / getSize();
  call.same_place = whole;
  const Tensors parts = equal_parts(whole, getSize());
  return gather_into(parts, parts[getRank()], std::move(call));
}

// outputs[r][i] receives what rank r gave as inputs[i]. One collective over all inputs laid end to end.
Backend::WorkPtr Backend::allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const char* const name = "all_gather_coalesced";
  if (outputs.size() != static_cast<size_t>(getSize())) {
    refuse(std::string(name) + ": expected " + std::to_string(getSize()) + " lists (one per rank), got " +
           std::to_string(outputs.size()));
  }
  if (inputs.empty()) return c10::make_intrusive<BatchWork>(getRank(), std::vector<WorkPtr>{});
  checked_list(inputs, name);
  const at::Tensor input = joined(inputs);
  Tensors parts;
  for (const Tensors& list : outputs) {
    check_pairs(list, inputs, name);
    for (size_t i = 0; i < list.size(); ++i) {
      checked_dtype(list[i], name);
      check_writable(list[i], name);
      check_same_dtype(inputs[i], list[i], name);
      check_numel(list[i], inputs[i].numel(), name, "an output");
    }
    parts.push_back(at::empty_like(input));
  }
  Call call = make_call(c10d::OpType::ALLGATHER_COALESCED, "ringdp:all_gather", Collective::kAllGather, inputs,
                        nested_result(outputs), opts);
  call.desc.count = input.numel();
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    call.memory.then([part = parts[rank], list = outputs[rank]] { copy_apart(part, list); }, outputs[rank]);
  }
  return gather_into(parts, input, std::move(call));
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  const auto one = [&](at::Tensor& output, at::Tensor& input) { return _allgather_base(output, input, opts); };
  return each_pair(outputs, inputs, "all_gather_into_tensor_coalesced", one);
}

Backend::WorkPtr Backend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor input = single(inputs, "gather");
  Call call = make_call(c10d::OpType::GATHER, "ringdp:gather", Collective::kGather, {}, {}, opts);
  const bool root = set_root(call.desc, opts.rootRank, "gather");
  if (!root && !outputs.empty()) refuse("gather: outputs are for the root only: pass none on other ranks");
  const Tensors parts = root ? one_per_rank(outputs, "gather", "output") : Tensors{};
  for (const at::Tensor& part : parts) check_numel(part, input.numel(), "gather", "an output");
  call.result = flat_result(parts);
  call.desc.count = input.numel();
  return gather_into(parts, input, std::move(call));
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) {
  const at::Tensor output = single(outputs, "scatter");
  Call call = make_call(c10d::OpType::SCATTER, "ringdp:scatter", Collective::kScatter, {}, flat_result(outputs), opts);
  const bool root = set_root(call.desc, opts.rootRank, "scatter");
  if (!root && !inputs.empty()) refuse("scatter: inputs are for the root only: pass none on other ranks");
  const Tensors parts = root ? one_per_rank(inputs, "scatter", "input") : Tensors{};
  call.inputs = parts;
  call.desc.dtype = checked_dtype(output, "scatter");
  call.desc.count = output.numel();
  place(call, output.device());
  for (const at::Tensor& part : parts) {
    checked_dtype(part, "scatter");
    check_same_dtype(part, output, "scatter");
    check_numel(part, output.numel(), "scatter", "an input");
    call.buffers.inputs.push_back(call.memory.read(part).data_ptr());
  }
  call.buffers.outputs = {call.memory.write(output, "scatter").data_ptr()};
  return run(std::move(call));
}

// `outputs` and `inputs` have one tensor per rank.
Backend::WorkPtr Backend::exchange(Tensors outputs, Tensors inputs, Call call) {
  const char* const name = "all_to_all";
  call.desc.dtype = checked_dtype(inputs[0], name);
  for (const at::Tensor& input : inputs) {
    checked_dtype(input, name);
    check_same_dtype(inputs[0], input, name);
    call.desc.sends.push_back(input.numel());
    call.buffers.inputs.push_back(call.memory.read(input).data_ptr());
  }
  for (const at::Tensor& output : outputs) {
    checked_dtype(output, name);
    check_same_dtype(inputs[0], output, name);
    call.desc.recvs.push_back(output.numel());
    call.buffers.outputs.push_back(call.memory.write(output, name).data_ptr());
  }
  check_numel(outputs[getRank()], inputs[getRank()].numel(), name, "this rank's own output");
  return run(std::move(call));
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  one_per_rank({outputs}, "all_to_all", "output");
  one_per_rank({inputs}, "all_to_all", "input");
  return exchange(outputs, inputs,
                  make_call(c10d::OpType::ALLTOALL, "ringdp:all_to_all", Collective::kAllToAll, inputs,
                            flat_result(outputs), opts));
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits,
                                        Splits& input_splits, const c10d::AllToAllOptions& opts) {
  checked_dtype(output, "all_to_all_single");
  checked_dtype(input, "all_to_all_single");
  if (!flat_target(output, "all_to_all_single").is_same(output)) {
    refuse("all_to_all_single: the output must be contiguous");
  }
  const auto recvs = elements_of(output, output_splits, getSize(), "output");
  const auto sends = elements_of(input, input_splits, getSize(), "input");
  Call call = make_call(c10d::OpType::ALLTOALL_BASE, "ringdp:all_to_all", Collective::kAllToAll, {input},
                        flat_result({output}), opts);
  // With splits only a pair knows what it exchanges.
  if (output_splits.empty() && input_splits.empty() && output.numel() == input.numel()) {
    check_same_dtype(input, output, "all_to_all_single");
    call.desc.dtype = checked_dtype(input, "all_to_all_single");
    call.desc.count = sends[0];
    place(call, input.device());
    if (call.desc.place == comm::Place::kHost) call.desc.count = 0;  // the host's plans go by sends and recvs
  }
  return exchange(cut(output, recvs), cut(flat(input), sends), std::move(call));
}

}  // namespace ringdp::backend
