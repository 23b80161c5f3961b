// One collective to be tested, of all its ranks: what is asked of the plans, in words, and the plans.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "plan/catalog.h"

namespace ringdp::plan::testing {

struct Case {
  AlgorithmChoice algorithm = AlgorithmChoice::kDirect;
  Order order = Order::kRank;
  Problem problem;                          // rank, sends and recvs are ignored
  std::vector<std::vector<int64_t>> sends;  // all_to_all: by rank; empty: all parts are of problem.count
  int64_t unit = 1;  // in elements, of the rotated ring's chunks
  bool in_place = false;
  size_t link_bytes = 64;
  uint64_t seed = 1;

  int64_t sent(int from, int to) const { return sends.empty() ? problem.count : sends[from][to]; }
};

template <class Numbers>
std::string list_of(const Numbers& numbers) {
  std::string text = "[";
  for (const auto number : numbers) text += (text.size() > 1 ? " " : "") + std::to_string(number);
  return text + "]";
}

inline std::string text_of(const Case& c) {
  const Problem& p = c.problem;
  std::string text = std::string(name_of(c.algorithm)) + "/" + name_of(c.order) + " " + name_of(p.what) + " " +
                     name_of(p.op) + " " + name_of(p.dtype) + " x " + std::to_string(p.count) + ", world " +
                     std::to_string(p.world) + ", root " + std::to_string(p.root) + ", segment " +
                     std::to_string(p.segment_bytes) + ", slot " + std::to_string(p.slot_bytes) +
                     (c.in_place ? ", in place" : "") + ", link " + std::to_string(c.link_bytes) + ", seed " +
                     std::to_string(c.seed);
  if (p.wire != WireType::kFp32) text += std::string(", wire ") + name_of(p.wire);
  if (!p.counts.empty()) text += ", counts " + list_of(p.counts);
  if (!p.hosts.empty()) text += ", hosts " + list_of(p.hosts);
  for (const auto& row : c.sends) text += ", sends " + list_of(row);
  return text;
}

inline std::vector<Plan> plans_of(const Case& c) {
  std::vector<Plan> plans;
  for (int r = 0; r < c.problem.world; ++r) {
    Problem mine = c.problem;
    mine.rank = r;
    for (int q = 0; !c.sends.empty() && q < c.problem.world; ++q) {
      mine.sends.push_back(c.sends[r][q]);
      mine.recvs.push_back(c.sends[q][r]);
    }
    plans.push_back(make_plan(c.algorithm, c.order, mine));
  }
  return plans;
}

// Parts of 0, 1, `count` and anything between; of 0 elements only when count is 0.
inline std::vector<int64_t> uneven_parts(int world, int64_t count, std::mt19937_64& random) {
  std::vector<int64_t> parts;
  for (int r = 0; r < world; ++r) {
    const int64_t choices[] = {0, std::min<int64_t>(count, 1), count, static_cast<int64_t>(random() % (count + 1))};
    parts.push_back(choices[random() % 4]);
  }
  return parts;
}

// Gives the case's collective, if it knows parts, uneven ones.
inline void make_uneven(Case& c) {
  std::mt19937_64 random(c.seed);
  const Problem& p = c.problem;
  if (p.has_parts()) c.problem.counts = uneven_parts(p.world, p.count, random);
  for (int r = 0; p.what == Collective::kAllToAll && r < p.world; ++r) {
    c.sends.push_back(uneven_parts(p.world, p.count, random));
  }
}

// Every rank after the first starts a new host with probability 1 / `size`.
inline std::vector<int> random_hosts(int world, int size, std::mt19937_64& random) {
  std::vector<int> hosts = {0};
  for (int r = 1; r < world; ++r) {
    if (random() % size == 0) hosts.push_back(r);
  }
  return hosts;
}

}  // namespace ringdp::plan::testing
