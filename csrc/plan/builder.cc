#include "plan/builder.h"

#include <utility>

namespace ringdp::plan {
namespace {

constexpr int64_t kCacheLine = 64;

}  // namespace

Builder::Builder(const std::string& algorithm, const Problem& problem)
    : outputs_past_caches_(problem.overflows_caches()) {
  plan_.algorithm = algorithm;
  plan_.what = problem.what;
  plan_.dtype = problem.dtype;
  plan_.op = problem.op;
  if (problem.travels_encoded()) plan_.wire = problem.wire;
  plan_.rank = problem.rank;
  plan_.world = problem.world;
}

int Builder::add_lane(const std::string& name) {
  plan_.lanes.push_back({name, {}});
  return static_cast<int>(plan_.lanes.size()) - 1;
}

After Builder::append(int lane, Step step) {
  std::vector<Step>& steps = plan_.lanes[lane].steps;
  steps.push_back(std::move(step));
  return {lane, static_cast<int32_t>(steps.size())};
}

After Builder::send(int lane, int peer, int round, const Ref& src, std::vector<After> after) {
  return append(lane, {Verb::kSend, false, false, peer, round, {src}, {}, std::move(after)});
}

After Builder::recv(int lane, int peer, int round, const Ref& dst, std::vector<After> after) {
  return append(lane, {Verb::kRecv, false, false, peer, round, {}, {dst}, std::move(after)});
}

After Builder::send_announced(int lane, int peer, int round, const Ref& src) {
  return append(lane, {Verb::kSend, false, true, peer, round, {src}, {}, {}});
}

After Builder::recv_announced(int lane, int peer, int round, const Ref& dst) {
  return append(lane, {Verb::kRecv, false, true, peer, round, {}, {dst}, {}});
}

After Builder::fold(int lane, std::vector<Ref> srcs, std::vector<Ref> dsts, bool finish, std::vector<After> after) {
  return append(lane, {Verb::kFold, finish, false, -1, -1, std::move(srcs), std::move(dsts), std::move(after)});
}

After Builder::copy(int lane, const Ref& src, const Ref& dst, std::vector<After> after) {
  const bool past_caches = outputs_past_caches_ && dst.space == Space::kOutput;
  return append(lane, {Verb::kCopy, false, false, -1, -1, {src}, {dst}, std::move(after), past_caches});
}

After Builder::encode(int lane, const Ref& src, const Ref& dst, std::vector<After> after) {
  return append(lane, {Verb::kEncode, false, false, -1, -1, {src}, {dst}, std::move(after)});
}

After Builder::decode(int lane, const Ref& src, const Ref& dst, std::vector<After> after) {
  return append(lane, {Verb::kDecode, false, false, -1, -1, {src}, {dst}, std::move(after)});
}

After Builder::signal(int lane) { return append(lane, {Verb::kSignal, false, false, -1, -1, {}, {}, {}}); }

After Builder::wait(int lane) { return append(lane, {Verb::kWait, false, false, -1, -1, {}, {}, {}}); }

Ref Builder::user(Space space, int tensor, Extent elements) const {
  return {space, Form::kRaw, tensor, 0, elements.begin * size_of(plan_.dtype), elements.count()};
}

Ref Builder::slot(int member, int stage, int64_t byte_offset, int64_t count) const {
  return {Space::kSlot, Form::kRaw, member, stage, byte_offset, count};
}

Ref Builder::scratch(int64_t byte_offset, Form form, int64_t count) {
  return {Space::kScratch, form, 0, 0, byte_offset, count};
}

int64_t Builder::reserve_scratch(int64_t bytes) {
  const int64_t offset = plan_.scratch_bytes;
  plan_.scratch_bytes += align_up(bytes, kCacheLine);
  return offset;
}

}  // namespace ringdp::plan
