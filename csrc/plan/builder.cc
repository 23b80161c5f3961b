#include "plan/builder.h"

#include <algorithm>
#include <utility>

namespace ringdp::plan {
namespace {

constexpr int64_t kCacheLine = 64;

}  // namespace

Builder::Builder(const std::string& algorithm, const Problem& problem)
    : outputs_nontemporal_(problem.overflows_caches()), line_bytes_(problem.in_kernels() ? kPackBytes : kCacheLine) {
  plan_.algorithm = algorithm;
  plan_.what = problem.what;
  plan_.dtype = problem.dtype;
  plan_.op = problem.op;
  if (problem.travels_encoded()) plan_.wire = problem.wire;
  plan_.rank = problem.rank;
  plan_.world = problem.world;
  if (problem.roots) {
    whole_ = problem.roots->program();
  } else if (problem.sums_along_tree() && problem.world > 3) {
    whole_ = program_of_ranks(problem.world);
  }
}

int Builder::add_channel(const std::string& name) {
  plan_.channels.push_back({name, {}});
  return static_cast<int>(plan_.channels.size()) - 1;
}

After Builder::append(int channel, Step step) {
  std::vector<Step>& steps = plan_.channels[channel].steps;
  step.number = written_++;
  steps.push_back(std::move(step));
  return {channel, static_cast<int32_t>(steps.size())};
}

After Builder::send(int channel, int peer, int round, const Ref& src, std::vector<After> after) {
  return append(channel, {Verb::kSend, false, false, peer, round, {src}, {}, std::move(after)});
}

After Builder::recv(int channel, int peer, int round, const Ref& dst, std::vector<After> after) {
  return append(channel, {Verb::kRecv, false, false, peer, round, {}, {dst}, std::move(after)});
}

After Builder::send_announced(int channel, int peer, int round, const Ref& src) {
  return append(channel, {Verb::kSend, false, true, peer, round, {src}, {}, {}});
}

After Builder::recv_announced(int channel, int peer, int round, const Ref& dst) {
  return append(channel, {Verb::kRecv, false, true, peer, round, {}, {dst}, {}});
}

After Builder::fold(int channel, std::vector<Ref> srcs, std::vector<Ref> dsts, bool finish, std::vector<After> after) {
  return fold_along(whole_, channel, std::move(srcs), std::move(dsts), finish, std::move(after));
}

After Builder::fold_along(const AddProgram& program, int channel, std::vector<Ref> srcs, std::vector<Ref> dsts,
                          bool finish, std::vector<After> after) {
  Step step{Verb::kFold, finish, false, -1, -1, std::move(srcs), std::move(dsts), std::move(after)};
  if (step.srcs.size() > 1 && !program.empty()) {
    const auto known = std::find(plan_.programs.begin(), plan_.programs.end(), program);
    step.program = static_cast<int>(known - plan_.programs.begin());
    if (known == plan_.programs.end()) plan_.programs.push_back(program);
  }
  return append(channel, std::move(step));
}

After Builder::copy(int channel, const Ref& src, const Ref& dst, std::vector<After> after) {
  const bool nontemporal = outputs_nontemporal_ && dst.space == Space::kOutput;
  return append(channel, {Verb::kCopy, false, false, -1, -1, {src}, {dst}, std::move(after), nontemporal});
}

After Builder::copy_to_all(int channel, const Ref& src, std::vector<Ref> dsts) {
  return append(channel, {Verb::kCopy, false, false, -1, -1, {src}, std::move(dsts), {}});
}

After Builder::encode(int channel, const Ref& src, const Ref& dst, std::vector<After> after) {
  return append(channel, {Verb::kEncode, false, false, -1, -1, {src}, {dst}, std::move(after)});
}

After Builder::decode(int channel, const Ref& src, const Ref& dst, std::vector<After> after) {
  return append(channel, {Verb::kDecode, false, false, -1, -1, {src}, {dst}, std::move(after)});
}

After Builder::arrive(int channel) { return append(channel, {Verb::kArrive, false, false, -1, -1, {}, {}, {}}); }

After Builder::wait(int channel) { return append(channel, {Verb::kWait, false, false, -1, -1, {}, {}, {}}); }

After Builder::post(int channel, int peer, int round) {
  return append(channel, {Verb::kPost, false, false, peer, round, {}, {}, {}});
}

After Builder::await(int channel, int peer, int round) {
  return append(channel, {Verb::kAwait, false, false, peer, round, {}, {}, {}});
}

After Builder::push(int channel, const Ref& src) {
  return append(channel, {Verb::kPush, false, false, -1, -1, {src}, {}, {}});
}

Ref Builder::user(Space space, int tensor, Extent elements) const {
  return {space, Form::kRaw, tensor, 0, elements.begin * size_of(plan_.dtype), elements.count()};
}

Ref Builder::peer_input(int member, Extent elements, int root) const {
  Ref ref = user(Space::kPeerInput, member, elements);
  ref.stage = root;
  return ref;
}

Ref Builder::slot(int member, int stage, int64_t byte_offset, int64_t count) const {
  return {Space::kSlot, Form::kRaw, member, stage, byte_offset, count};
}

Ref Builder::scratch(int64_t byte_offset, Form form, int64_t count) {
  return {Space::kScratch, form, 0, 0, byte_offset, count};
}

int64_t Builder::reserve_scratch(int64_t bytes) {
  const int64_t offset = plan_.scratch_bytes;
  plan_.scratch_bytes += align_up(bytes, line_bytes_);
  return offset;
}

}  // namespace ringdp::plan
