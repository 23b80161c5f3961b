// The backend's point-to-point messages. They run beside the collectives of the group and are matched by rank and tag.
#include "backend/backend.h"
#include "backend/errors.h"
#include "backend/profile.h"
#include "backend/tensors.h"

namespace ringdp::backend {

Backend::WorkPtr Backend::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor tensor = single(tensors, "send");
  comm::MessageRequest request;
  request.peer = destination;
  request.tag = tag;
  request.dtype = checked_dtype(tensor, "send");
  request.count = tensor.numel();
  CallMemory memory(*lanes_);
  request.memory = memory.read(tensor).data_ptr();
  return guarded([&] {
    record_param_comms("ringdp:send", Kind::kMessage, *this, tensors, {});
    return post(c10d::OpType::SEND, "ringdp:send", tensor, memory, std::move(request));
  });
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int source, int tag) {
  if (source < 0) refuse("recv: source " + std::to_string(source) + " is no rank: use recv_anysource for any");
  return receive(c10d::OpType::RECV, "ringdp:recv", tensors, source, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return receive(c10d::OpType::RECVANYSOURCE, "ringdp:recvAnySource", tensors, comm::kAnySource, tag);
}

Backend::WorkPtr Backend::receive(c10d::OpType type, const char* title, Tensors& tensors, int source, int tag) {
  const at::Tensor tensor = single(tensors, "recv");
  comm::MessageRequest request;
  request.peer = source;
  request.tag = tag;
  request.dtype = checked_dtype(tensor, "recv");
  request.count = tensor.numel();
  CallMemory memory(*lanes_);
  request.memory = memory.write(tensor, "recv").data_ptr();
  return guarded([&] {
    record_param_comms(title, Kind::kMessage, *this, {}, tensors);
    return post(type, title, tensor, memory, std::move(request));
  });
}

// Completes the request, and makes its Work.
Backend::WorkPtr Backend::post(c10d::OpType type, const char* title, const at::Tensor& tensor, const CallMemory& memory,
                               comm::MessageRequest request) {
  const Tensors list{tensor};
  request.deadline = Deadline::after(options_->timeout);
  const bool sends = type == c10d::OpType::SEND;
  const auto source = sends ? std::nullopt : std::optional<int>(request.peer);
  Ends ends = ends_of(type, title, list, flat_result(list), memory, source);
  request.ready = std::move(ends.ready);
  request.ending = std::move(ends.ending);
  ends.work->attach(group_, sends ? group_->send(std::move(request)) : group_->recv(std::move(request)), 0);
  return remember(ends.work);
}

}  // namespace ringdp::backend
