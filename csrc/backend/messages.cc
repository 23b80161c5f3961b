// The backend's point-to-point messages. They run beside the collectives of the group and are matched by rank and tag.
#include "backend/backend.h"
#include "backend/errors.h"
#include "backend/process.h"
#include "backend/profile.h"
#include "backend/tensors.h"

namespace ringdp::backend {

Backend::WorkPtr Backend::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor tensor = single(tensors, "send"), memory = flat(tensor);
  comm::MessageRequest request;
  request.peer = destination;
  request.tag = tag;
  request.dtype = checked_dtype(tensor, "send");
  request.count = tensor.numel();
  request.memory = memory.data_ptr();
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
  const at::Tensor memory = flat_target(tensor, "recv");
  request.memory = memory.data_ptr();
  request.ending.epilogue = [memory, tensor] { copy_back(memory, tensor); };
  return guarded([&] {
    record_param_comms(title, Kind::kMessage, *this, {}, tensors);
    return post(type, title, tensor, memory, std::move(request));
  });
}

// Completes the request, and makes its Work.
Backend::WorkPtr Backend::post(c10d::OpType type, const char* title, const at::Tensor& tensor, const at::Tensor& memory,
                               comm::MessageRequest request) {
  const Tensors list{tensor};
  auto work = c10::make_intrusive<Work>(getRank(), type, title, list, flat_result(list), Tensors{memory}, completion());
  request.deadline = Deadline::after(options_->timeout);
  work->follow(request.ending);
  const bool sends = type == c10d::OpType::SEND;
  work->attach(group_, sends ? group_->send(std::move(request)) : group_->recv(std::move(request)));
  return remember(work);
}

}  // namespace ringdp::backend
