// Test support: all ranks of one all_reduce in one thread, over shared-memory links and arenas.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "collective/executor.h"
#include "plan/catalog.h"
#include "transport/shm/local_arenas.h"

namespace ringdp::collective {

// A link whose peer has not read for a while: the first sends find it full.
class FullAtFirst : public transport::Link {
 public:
  FullAtFirst(std::unique_ptr<transport::Link> link, int refusals) : link_(std::move(link)), refusals_(refusals) {}
  size_t try_send(const void* bytes, size_t size) override {
    return refusals_-- > 0 ? 0 : link_->try_send(bytes, size);
  }
  size_t try_recv(void* bytes, size_t size) override { return link_->try_recv(bytes, size); }
  const char* kind() const override { return link_->kind(); }

 private:
  std::unique_ptr<transport::Link> link_;
  int refusals_;
};

struct Case {
  AlgorithmChoice algorithm;
  Order order;
  bool shared;  // headers go through the arena, whatever the plan runs on
  WireType wire = WireType::kFp32;
};
inline const Case kCases[] = {{AlgorithmChoice::kArena, Order::kRank, true},
                              {AlgorithmChoice::kDirect, Order::kRank, false},
                              {AlgorithmChoice::kDirect, Order::kRank, true},
                              {AlgorithmChoice::kExchange, Order::kRank, false},
                              {AlgorithmChoice::kExchange, Order::kTree, true},
                              {AlgorithmChoice::kRing, Order::kRank, false},
                              {AlgorithmChoice::kRing, Order::kRotated, false},
                              {AlgorithmChoice::kRing, Order::kRotated, true},
                              {AlgorithmChoice::kTree, Order::kRank, false},
                              {AlgorithmChoice::kArena, Order::kTree, true},
                              {AlgorithmChoice::kDirect, Order::kTree, false},
                              {AlgorithmChoice::kServer, Order::kRank, true},
                              {AlgorithmChoice::kDirect, Order::kRank, false, WireType::kBf16}};

// N ranks in one thread over shared-memory links and arenas; rank 0's links may be full at first.
class World {
 public:
  World(int ranks, const Case& c, int64_t count, int refusals_of_rank_0 = 0, int64_t slot_bytes = 4096)
      : arenas_(transport::make_local_arenas(ranks, slot_bytes, 4096)), parts_(ranks) {
    for (int r = 0; r < ranks; ++r) {
      Part& part = parts_[r];
      plan::Problem problem;
      problem.rank = r;
      problem.world = ranks;
      problem.count = count;
      problem.wire = c.wire;
      problem.segment_bytes = 256;
      problem.slot_bytes = slot_bytes;
      part.plan = plan::make_plan(c.algorithm, c.order, problem);
      part.in.assign(count, static_cast<float>(r + 1));
      part.out.assign(count, -1);
      if (c.shared) part.fabric.arena = arenas_[r].get();
      for (int member = 0; member < ranks; ++member) part.fabric.members.push_back(member);
      for (int peer = 0; peer < ranks; ++peer) {
        auto link = peer == r ? nullptr : arenas_[r]->link_to(peer);
        if (link && r == 0) link = std::make_unique<FullAtFirst>(std::move(link), refusals_of_rank_0);
        part.links.push_back(std::move(link));
        part.fabric.links.push_back(part.links.back().get());
      }
    }
  }

  // `announced[r]` is the one byte of rank r's header; ranks compare it with their own.
  void start(uint64_t seq, const std::vector<int>& announced) {
    for (size_t r = 0; r < parts_.size(); ++r) start_rank(static_cast<int>(r), seq, announced[r]);
  }
  void start_rank(int r, uint64_t seq, int announced) {
    Opening opening;
    opening.seq = seq;
    opening.header.bytes[0] = static_cast<std::byte>(announced);
    opening.check = [mine = opening.header.bytes[0]](int rank, const transport::Header& theirs) {
      if (theirs.bytes[0] != mine) throw Error(ErrorKind::kMismatch, "differs", rank);
    };
    Part& part = parts_[r];
    HeaderExchange headers(part.fabric, r, part.plan.world, std::move(opening));
    Buffers buffers{{part.in.data()}, {part.out.data()}};
    if (counts_contributions) buffers.contributions = &part.contributions;
    if (on_result) buffers.on_result = [this, r](int64_t begin, int64_t count) { on_result(r, begin, count); };
    Observer observer;
    if (after_step)
      observer = [this, r](const plan::Step& step, const std::vector<void*>& dsts) { after_step(r, step, dsts); };
    part.executor = std::make_unique<Executor>(part.plan, std::move(buffers), part.fabric, part.workspace,
                                               std::move(headers), std::move(observer));
  }

  // Before start():
  std::function<void(int rank, int64_t begin, int64_t count)> on_result;
  std::function<void(int rank, const plan::Step& step, const std::vector<void*>& dsts)> after_step;
  bool counts_contributions = false;

  bool advance(int rank) { return parts_[rank].executor->advance(); }
  bool done() const {
    for (const Part& part : parts_) {
      if (!part.executor || !part.executor->done()) return false;
    }
    return true;
  }
  void run() {
    while (!done()) {
      for (size_t r = 0; r < parts_.size(); ++r) advance(static_cast<int>(r));
    }
  }
  const Executor& executor(int rank) const { return *parts_[rank].executor; }
  const plan::Plan& plan(int rank) const { return parts_[rank].plan; }
  const Workspace& workspace(int rank) const { return parts_[rank].workspace; }
  std::vector<float>& in(int rank) { return parts_[rank].in; }
  const std::vector<float>& out(int rank) const { return parts_[rank].out; }
  const Contributions& contributions(int rank) const { return parts_[rank].contributions; }

 private:
  struct Part {
    plan::Plan plan;
    std::vector<float> in, out;
    Contributions contributions;
    std::vector<std::unique_ptr<transport::Link>> links;
    Fabric fabric;
    Workspace workspace;
    std::unique_ptr<Executor> executor;
  };
  std::vector<std::unique_ptr<transport::ShmArena>> arenas_;
  std::deque<Part> parts_;
};

}  // namespace ringdp::collective
