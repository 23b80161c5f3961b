#include "plan/device_builder.h"
#include "plan/device_texts.h"

namespace ringdp::plan {
namespace {

using Ref = DeviceBuilder;

// A rank says that its tensors are there, and later hears that they are done with, which the root says to nobody before
// it has heard from all. The root moves what others bring: a reader needs one flag of each, a writer would need two.
class DeviceRooted {
 public:
  DeviceRooted(const std::string& algorithm, const DeviceProblem& problem, int64_t input, int64_t output)
      : problem_(problem), builder_(algorithm, problem, input, output) {}

  DevicePlan build() {
    if (problem_.rank != problem_.root) {
      builder_.post(problem_.root, kEntrySlot);
      builder_.await(problem_.root, kExitSlot);
    } else {
      for (const int peer : peers()) builder_.await(peer, kEntrySlot);
      if (problem_.what == Collective::kReduce) builder_.sum(Ref::input(0, kEverybody), Ref::output(0), problem_.count);
      move(problem_.rank);
      for (const int peer : peers()) {
        move(peer);
        builder_.post(peer, kExitSlot);
      }
    }
    return builder_.finish();
  }

 private:
  // That rank's part.
  void move(int rank) {
    const int64_t part = rank * problem_.count;
    if (problem_.what == Collective::kGather) builder_.copy(Ref::input(0, rank), Ref::output(part), problem_.count);
    if (problem_.what == Collective::kScatter) builder_.copy(Ref::input(part), Ref::output(0, rank), problem_.count);
  }

  // The others, beginning with the next rank.
  std::vector<int> peers() const {
    std::vector<int> ranks;
    for (int k = 1; k < problem_.world; ++k) ranks.push_back(wrap(problem_.rank + k, problem_.world));
    return ranks;
  }

  const DeviceProblem& problem_;
  DeviceBuilder builder_;
};

}  // namespace

DevicePlan device_rooted(const DeviceProblem& problem) {
  const int64_t all = problem.count * problem.world;
  switch (problem.what) {
    case Collective::kGather: return DeviceRooted("direct", problem, problem.count, all).build();
    case Collective::kScatter: return DeviceRooted("direct", problem, all, problem.count).build();
    default: return DeviceRooted("one_shot", problem, problem.count, problem.count).build();
  }
}

}  // namespace ringdp::plan
