#include "collective/walkthrough.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "collective/executor.h"
#include "plan/catalog.h"
#include "transport/shm/shm_arena.h"

namespace ringdp::collective {
namespace {

constexpr int kMaxRanks = 64;
constexpr int64_t kStreamBytes = 4096;

struct Rank {
  plan::Plan plan;
  std::vector<float> memory;
  std::vector<std::unique_ptr<transport::Link>> links;
  Fabric fabric;
  Workspace workspace;
  std::unique_ptr<Executor> executor;
  int last_round = 0;
};

void check(const std::vector<std::vector<float>>& inputs) {
  if (inputs.empty() || inputs.size() > kMaxRanks) {
    throw Error(ErrorKind::kInvalidArgument,
                "a walkthrough takes 1 to " + std::to_string(kMaxRanks) + " ranks, not " + std::to_string(inputs.size()));
  }
  for (const auto& input : inputs) {
    if (input.size() == inputs[0].size()) continue;
    throw Error(ErrorKind::kInvalidArgument, "all ranks must bring equally many elements: " + std::to_string(inputs[0].size()) +
                                                 " and " + std::to_string(input.size()));
  }
}

std::vector<std::unique_ptr<transport::ShmArena>> make_arenas(int world) {
  const transport::SegmentLayout layout{world, 64, kStreamBytes};
  const auto members = std::make_shared<std::vector<transport::LocalMember>>();
  for (int i = 0; i < world; ++i) members->push_back({transport::Segment::create(layout), transport::Doorbell()});
  std::vector<std::unique_ptr<transport::ShmArena>> arenas;
  for (int i = 0; i < world; ++i) arenas.push_back(transport::ShmArena::create(i, layout, members));
  return arenas;
}

// Elements a fold or a receive has just produced, as an event; sends and waits produce none.
void note_event(Rank& rank, const plan::Step& step, const std::vector<void*>& dsts, std::vector<RingEvent>& events) {
  if (step.verb == plan::Verb::kRecv) rank.last_round = step.round;
  const bool folded = step.verb == plan::Verb::kFold && step.srcs.size() > 1;
  const bool copied = step.verb == plan::Verb::kRecv && step.dsts[0].space == plan::Space::kOutput;
  if (!folded && !copied) return;
  RingEvent event;
  event.kind = copied ? RingEvent::Kind::kCopy : step.finish ? RingEvent::Kind::kFinalSum : RingEvent::Kind::kPartialSum;
  event.rank = rank.plan.rank;
  event.round = rank.last_round;
  event.begin = (copied ? step.dsts[0] : step.srcs.back()).offset / static_cast<int64_t>(sizeof(float));
  const auto* values = static_cast<const float*>(dsts[0]);
  event.values.assign(values, values + step.dsts[0].count);
  events.push_back(std::move(event));
}

}  // namespace

Walkthrough walk_ring(const std::vector<std::vector<float>>& inputs, Order order) {
  check(inputs);
  const int world = static_cast<int>(inputs.size());
  const auto arenas = make_arenas(world);
  Walkthrough walk;
  std::vector<Rank> ranks(world);
  for (int r = 0; r < world; ++r) {
    Rank& rank = ranks[r];
    plan::Problem problem;
    problem.rank = r;
    problem.world = world;
    problem.count = static_cast<int64_t>(inputs[r].size());
    rank.plan = plan::make_plan(AlgorithmChoice::kRing, order, problem);
    rank.memory = inputs[r];
    for (int peer = 0; peer < world; ++peer) {
      rank.links.push_back(peer == r ? nullptr : arenas[r]->link_to(peer));
      rank.fabric.links.push_back(rank.links.back().get());
    }
    Opening opening;
    opening.seq = 1;
    opening.check = [](int, const transport::Note&) {};  // all ranks are built from one problem
    rank.executor = std::make_unique<Executor>(
        rank.plan, Buffers{{rank.memory.data()}, {rank.memory.data()}}, rank.fabric, rank.workspace,
        NoteExchange(rank.fabric, r, world, std::move(opening)),
        [&rank, &walk](const plan::Step& step, const std::vector<void*>& dsts) { note_event(rank, step, dsts, walk.events); });
  }
  const auto unfinished = [](const Rank& rank) { return !rank.executor->done(); };
  while (std::any_of(ranks.begin(), ranks.end(), unfinished)) {
    for (Rank& rank : ranks) rank.executor->advance();
  }
  for (const Rank& rank : ranks) {
    walk.results.push_back(rank.memory);
    walk.totals.push_back(rank.executor->totals());
  }
  std::stable_sort(walk.events.begin(), walk.events.end(), [](const RingEvent& a, const RingEvent& b) {
    return std::pair(a.round, a.rank) < std::pair(b.round, b.rank);
  });
  return walk;
}

}  // namespace ringdp::collective
