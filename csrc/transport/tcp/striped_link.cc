#include "transport/tcp/striped_link.h"

namespace ringdp::transport {

StripedLink::StripedLink(std::vector<std::unique_ptr<Link>> streams) : streams_(std::move(streams)) {}

void StripedLink::count(Turn& turn, size_t bytes) const {
  turn.done += bytes;
  if (turn.done < kStripeBytes) return;
  turn = {(turn.stream + 1) % streams_.size(), 0};
}

size_t StripedLink::try_send(const void* bytes, size_t size) {
  size_t sent = 0;
  while (sent < size) {
    const auto* from = static_cast<const std::byte*>(bytes) + sent;
    const size_t n = streams_[out_.stream]->try_send(from, left(out_, size - sent));
    if (n == 0) break;
    count(out_, n);
    sent += n;
  }
  return sent;
}

size_t StripedLink::try_recv(void* bytes, size_t size) {
  size_t received = 0;
  while (received < size) {
    auto* to = static_cast<std::byte*>(bytes) + received;
    const size_t n = streams_[in_.stream]->try_recv(to, left(in_, size - received));
    if (n == 0) break;
    count(in_, n);
    received += n;
  }
  return received;
}

void StripedLink::add_polls(short events, std::vector<pollfd>& polls) const {
  if (events & POLLIN) streams_[in_.stream]->add_polls(POLLIN, polls);
  if (events & POLLOUT) streams_[out_.stream]->add_polls(POLLOUT, polls);
}

}  // namespace ringdp::transport
