// Test support: ranks of one thread on links on which every byte takes one unit of time; nothing else takes any.
#pragma once
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "collective/executor.h"
#include "collective/inspect.h"
#include "plan/catalog.h"

namespace ringdp::collective {

// One direction between two ranks.
struct Way {
  std::deque<std::pair<int, std::byte>> bytes;  // and when they arrive
};

class FarLink : public transport::Link {
 public:
  // `room`: bytes that may be under way.
  FarLink(const int& now, Way& to, Way& from, size_t room = SIZE_MAX) : now_(now), to_(to), from_(from), room_(room) {}
  size_t try_send(const void* bytes, size_t size) override {
    size = std::min(size, room_ - to_.bytes.size());
    for (size_t i = 0; i < size; ++i) to_.bytes.emplace_back(now_ + takes_, static_cast<const std::byte*>(bytes)[i]);
    return size;
  }
  size_t try_recv(void* bytes, size_t size) override {
    size_t n = 0;
    for (; n < size && !from_.bytes.empty() && from_.bytes.front().first <= now_; ++n) {
      static_cast<std::byte*>(bytes)[n] = from_.bytes.front().second;
      from_.bytes.pop_front();
    }
    return n;
  }
  const char* kind() const override { return "far"; }
  void slow_down(int takes) { takes_ = takes; }  // what is sent from now on takes so many units of time

 private:
  const int& now_;
  Way &to_, &from_;
  const size_t room_;
  int takes_ = 1;
};

// Ranks that call collectives in a row, of which so many are in flight.
class FarRanks {
 public:
  explicit FarRanks(int world, size_t in_flight = 1)
      : in_flight_(in_flight), ways_(world, std::vector<Way>(world)), ranks_(world) {
    for (int r = 0; r < world; ++r) {
      for (int peer = 0; peer < world; ++peer) {
        ranks_[r].links.push_back(std::make_unique<FarLink>(now_, ways_[r][peer], ways_[peer][r]));
        ranks_[r].fabric.links.push_back(peer == r ? nullptr : ranks_[r].links.back().get());
      }
      if (in_flight > 1) ranks_[r].fabric.frame_links(ahead_bytes(world));
    }
  }

  // The one-way trips until the last rank is through with the last of `calls` equal collectives.
  int trips(AlgorithmChoice algorithm, Order order, plan::Problem problem, int calls = 1) {
    problem.world = static_cast<int>(ranks_.size());
    for (Rank& rank : ranks_) {
      problem.rank = static_cast<int>(&rank - ranks_.data());
      rank.plan = plan::make_plan(algorithm, order, problem);
      rank.calls = rank.seq + calls;
    }
    const int start = now_;
    while (true) {
      bool moved = false, done = true;
      for (Rank& rank : ranks_) {
        moved |= advance(rank);
        done &= rank.seq == rank.calls && rank.executors.empty();
      }
      if (done) return now_ - start;
      if (!moved) ++now_;
    }
  }

  int64_t rounds() const {
    int64_t most = 0;
    for (const Rank& rank : ranks_) most = std::max(most, totals(rank.plan).rounds);
    return most;
  }

 private:
  struct Rank {
    std::vector<std::unique_ptr<FarLink>> links;
    Fabric fabric;
    plan::Plan plan;
    Workspace workspace;
    std::vector<float> in = std::vector<float>(4096), out = std::vector<float>(4096);
    std::deque<std::unique_ptr<Executor>> executors;
    uint64_t seq = 0, calls = 0;  // the last that has begun, and the last there will be
  };

  bool advance(Rank& rank) {
    while (rank.executors.size() < in_flight_ && rank.seq < rank.calls) {
      const int world = static_cast<int>(ranks_.size());
      Opening opening;
      opening.seq = ++rank.seq;
      opening.check = [](int, const transport::Header&) {};
      Buffers buffers{std::vector<const void*>(world, rank.in.data()), std::vector<void*>(world, rank.out.data())};
      rank.executors.push_back(std::make_unique<Executor>(
          rank.plan, std::move(buffers), rank.fabric, rank.workspace,
          HeaderExchange(rank.fabric, static_cast<int>(&rank - ranks_.data()), world, std::move(opening))));
    }
    bool moved = false;
    for (const auto& executor : rank.executors) moved |= executor->advance();
    while (!rank.executors.empty() && rank.executors.front()->done()) {
      rank.executors.pop_front();
      moved = true;
    }
    return moved;
  }

  const size_t in_flight_;
  int now_ = 0;
  std::vector<std::vector<Way>> ways_;  // from a rank to another
  std::vector<Rank> ranks_;
};

}  // namespace ringdp::collective
