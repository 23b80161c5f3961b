#include "device/plan/race.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/bytes.h"

namespace ringdp::plan {
namespace {

using Clock = std::vector<uint32_t>;  // by thread of execution: up to which time its accesses happened before

void join(Clock& into, const Clock& from) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

struct Access {
  int thread;
  Extent bytes;
  bool writes;
  const DevicePlan* plan;
  int step;           // kCaller: an access of the caller's streams
  uint32_t time = 0;  // on the clock of its thread
};
constexpr int kCaller = -1;

std::string text_of(const Access& access) {
  const std::string rank = "rank " + std::to_string(access.plan->rank);
  if (access.step == kCaller) return "the caller on " + rank;
  return "step " + std::to_string(access.step) + " (" + text_of(access.plan->steps[access.step]) + ") of " + rank;
}

class RaceSearch {
 public:
  RaceSearch(int world, int most_blocks, bool in_place)
      : world_(world),
        most_(most_blocks),
        in_place_(in_place),
        clocks_(world * (most_blocks + 1), Clock(world * (most_blocks + 1))),
        has_pushed_(world * most_blocks) {}

  std::string run(const std::vector<std::vector<DevicePlan>>& launches, const std::vector<int>& blocks) {
    for (size_t i = 0; i < launches.size(); ++i) {
      blocks_ = blocks.at(i);
      begin(launches[i]);
      std::vector<size_t> next(clocks_.size());
      for (bool moved = true; moved;) {
        moved = false;
        for (const DevicePlan& plan : launches[i]) {
          for (int b = 0; b < blocks_; ++b)
            moved |= advance(plan, thread_of(plan.rank, b), next[thread_of(plan.rank, b)]);
        }
      }
      end(launches[i]);
    }
    return race_;
  }

 private:
  // A buffer that other ranks can access; pushed memory has one part per writer and epoch parity.
  struct Place {
    int space, rank, part;
    bool operator<(const Place& other) const {
      return std::tie(space, rank, part) < std::tie(other.space, other.rank, other.part);
    }
  };

  int thread_of(int rank, int block) const { return rank * most_ + block; }
  int streams_of(int rank) const { return world_ * most_ + rank; }

  void begin(const std::vector<DevicePlan>& plans) {
    flags_.clear();
    ++epoch_;
    for (const DevicePlan& plan : plans) {
      touch(plan);
      for (int b = 0; b < most_; ++b) clocks_[thread_of(plan.rank, b)] = clocks_[streams_of(plan.rank)];
    }
    for (int t = 0; t < world_ * most_; ++t) ++clocks_[t][t];
    started_ = clocks_;
  }

  void end(const std::vector<DevicePlan>& plans) {
    for (const DevicePlan& plan : plans) {
      Clock& streams = clocks_[streams_of(plan.rank)];
      for (int b = 0; b < blocks_; ++b) join(streams, clocks_[thread_of(plan.rank, b)]);
      touch(plan);
      hear(plan);
      find_stage_in_use(plan);
    }
  }

  // A caller may do anything with its tensors before and after a launch.
  void touch(const DevicePlan& plan) {
    const int thread = streams_of(plan.rank);
    ++clocks_[thread][thread];
    for (const DeviceSpace space : {DeviceSpace::kInput, DeviceSpace::kOutput}) {
      const int64_t elements = space == DeviceSpace::kInput ? plan.input : plan.output;
      note(place(plan, space, plan.rank), {thread, {0, elements * size_of(plan.dtype)}, true, &plan, kCaller});
    }
  }

  void hear(const DevicePlan& plan) {
    const Clock& streams = clocks_[streams_of(plan.rank)];
    for (int peer = 0; peer < world_; ++peer) {
      bool heard = false;
      for (int t = thread_of(peer, 0); t < thread_of(peer, blocks_); ++t) heard |= streams[t] >= started_[t][t];
      if (!heard) {
        found("rank " + std::to_string(plan.rank) + " leaves without having heard that rank " + std::to_string(peer) +
              " has begun");
      }
    }
  }

  // What this rank may write into next: the stages of its neighbours on a ring.
  void find_stage_in_use(const DevicePlan& plan) {
    const Clock& streams = clocks_[streams_of(plan.rank)];
    for (const int peer : {wrap(plan.rank + 1, world_), wrap(plan.rank - 1, world_)}) {
      for (const Access& access : accesses_[{static_cast<int>(DeviceSpace::kStage), peer, 0}]) {
        if (streams[access.thread] >= access.time) continue;
        found("rank " + std::to_string(plan.rank) + " leaves without having heard of the end of " + text_of(access));
      }
    }
  }

  // Runs thread `t` from step `at` on, as far as its flags are there.
  bool advance(const DevicePlan& plan, int t, size_t& at) {
    const size_t start = at;
    const int block = t % most_;
    for (; at < plan.steps.size(); ++at) {
      const DeviceStep& step = plan.steps[at];
      if (step.verb == DeviceVerb::kAwait) {
        const auto flag = flags_.find({thread_of(step.peer, block), plan.rank, step.slot, step.value});
        if (flag == flags_.end()) break;
        join(clocks_[t], flag->second);
      } else if (step.verb == DeviceVerb::kPost) {
        // A later value of the same flag serves as well; check_together() sees that every value is awaited.
        flags_[{t, step.peer, step.slot, step.value}] = clocks_[t];
        ++clocks_[t][t];
      } else if (step.verb == DeviceVerb::kSumPushed && !all_have_pushed(block)) {
        break;
      } else {
        move(plan, t, static_cast<int>(at));
      }
    }
    return at != start;
  }

  void move(const DevicePlan& plan, int t, int at) {
    const DeviceStep& step = plan.steps[at];
    refer(plan, t, at, step.from, false);
    if (step.verb == DeviceVerb::kAdd) refer(plan, t, at, step.addend, false);
    if (step.verb == DeviceVerb::kPush) return push(plan, t, at);
    if (step.verb == DeviceVerb::kSumPushed) take_pushed(plan, t, at);
    refer(plan, t, at, step.to, true);
  }

  bool all_have_pushed(int block) const {
    for (int rank = 0; rank < world_; ++rank) {
      if (has_pushed_[thread_of(rank, block)] != epoch_) return false;
    }
    return true;
  }

  void push(const DevicePlan& plan, int t, int at) {
    has_pushed_[t] = epoch_;
    const Extent bytes = share(plan, plan.steps[at].to, plan.steps[at].count, t);
    for (int reader = 0; reader < world_; ++reader) {
      if (reader != plan.rank) note(pushed(reader, plan.rank), {t, bytes, true, &plan, at});
    }
  }

  // Pushed data that has arrived shows that its writer's launch has started, and nothing else.
  void take_pushed(const DevicePlan& plan, int t, int at) {
    const Extent bytes = share(plan, plan.steps[at].from, plan.steps[at].count, t);
    for (int writer = 0; writer < world_; ++writer) {
      if (writer == plan.rank || bytes.count() == 0) continue;
      join(clocks_[t], started_[thread_of(writer, t % most_)]);
      reads_marked_ = true;
      note(pushed(plan.rank, writer), {t, bytes, false, &plan, at});
      reads_marked_ = false;
    }
  }

  void refer(const DevicePlan& plan, int t, int at, const DeviceRef& ref, bool writes) {
    const Extent bytes = share(plan, ref, plan.steps[at].count, t);
    for (int rank = 0; rank < world_; ++rank) {
      const bool meant = ref.rank == kAllRanks || rank == (ref.rank == kOwnRank ? plan.rank : ref.rank);
      if (meant) note(place(plan, ref.space, rank), {t, bytes, writes, &plan, at});
    }
  }

  // The bytes that a block accesses: its share of the packs.
  Extent share(const DevicePlan& plan, const DeviceRef& ref, int64_t count, int t) const {
    const Extent part = balanced_part(count, blocks_, t % most_, pack_elements(plan.dtype));
    return {bytes_of(plan, ref, ref.offset + part.begin), bytes_of(plan, ref, ref.offset + part.end)};
  }

  Place place(const DevicePlan& plan, DeviceSpace space, int rank) const {
    const bool may_be_same =
        plan.what == Collective::kAllReduce || plan.what == Collective::kReduce || plan.what == Collective::kBroadcast;
    const bool same = in_place_ && may_be_same;
    return {static_cast<int>(same && space == DeviceSpace::kOutput ? DeviceSpace::kInput : space), rank, 0};
  }
  Place pushed(int reader, int writer) const {
    return {static_cast<int>(DeviceSpace::kPushed), reader, (epoch_ & 1) * world_ + writer};
  }

  void note(const Place& place, const Access& access) {
    if (access.bytes.count() == 0) return;
    std::vector<Access>& others = accesses_[place];
    for (const Access& other : others) {
      const bool overlaps = other.bytes.begin < access.bytes.end && access.bytes.begin < other.bytes.end;
      if (!overlaps || (!access.writes && !other.writes) || other.thread == access.thread) continue;
      const bool comes_with_its_mark = reads_marked_ && other.time >= started_[other.thread][other.thread];
      if (clocks_[access.thread][other.thread] >= other.time || comes_with_its_mark) continue;
      found(text_of(access) + " races with " + text_of(other));
    }
    others.push_back(access);
    others.back().time = clocks_[access.thread][access.thread];
  }

  void found(const std::string& what) {
    if (race_.empty()) race_ = "launch " + std::to_string(epoch_) + ": " + what;
  }

  struct FlagValue {
    int writer_thread, reader_rank, slot, value;
    bool operator<(const FlagValue& other) const {
      return std::tie(writer_thread, reader_rank, slot, value) <
             std::tie(other.writer_thread, other.reader_rank, other.slot, other.value);
    }
  };

  const int world_, most_;  // blocks of any launch
  const bool in_place_;
  int epoch_ = 0, blocks_ = 0;  // of the current launch
  bool reads_marked_ = false;
  std::vector<Clock> clocks_, started_;  // by thread: rank * most + block, then each rank's streams
  std::map<FlagValue, Clock> flags_;
  std::vector<int> has_pushed_;  // by thread: in which launch
  std::map<Place, std::vector<Access>> accesses_;
  std::string race_;
};

}  // namespace

std::string find_race(const std::vector<std::vector<DevicePlan>>& launches, const std::vector<int>& blocks,
                      bool in_place) {
  const int most = *std::max_element(blocks.begin(), blocks.end());
  return RaceSearch(static_cast<int>(launches.at(0).size()), most, in_place).run(launches, blocks);
}

}  // namespace ringdp::plan
