#include "plan/pipeline.h"

namespace ringdp::plan {

int64_t segment_elements(const Problem& problem, int64_t count, int64_t pipelines) {
  const int64_t unit = problem.unit();
  const int64_t fitting = problem.segment_bytes / (unit * size_of(problem.dtype));
  const int64_t needed = ceil_div(ceil_div(count, unit), std::max<int64_t>(problem.most_segments / pipelines, 1));
  return unit * std::max<int64_t>({1, fitting, needed});
}

int64_t longest(const std::vector<Extent>& extents) {
  int64_t count = 0;
  for (const Extent& extent : extents) count = std::max(count, extent.count());
  return count;
}

Window::Window(Builder& builder, int slots, int64_t slot_bytes) : readers_(slots) {
  for (int i = 0; i < slots; ++i) offsets_.push_back(builder.reserve_scratch(slot_bytes));
}

Window::Slot Window::take() {
  const size_t i = next_++ % offsets_.size();
  return {static_cast<int>(i), offsets_[i], readers_[i]};
}

PeerChannels::PeerChannels(Builder& builder, const Problem& problem) : send(problem.world), recv(problem.world) {
  for (int i = 1; i < problem.world; ++i) peers.push_back((problem.rank + i) % problem.world);
  for (int peer : peers) send[peer] = builder.add_send_channel(peer);
  for (int peer : peers) recv[peer] = builder.add_recv_channel(peer);
  own = builder.add_channel("fold");
}

}  // namespace ringdp::plan
