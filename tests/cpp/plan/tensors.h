// One collective to be tested, of all its ranks: what is asked of the plans, in words; the plans; user memory, and what
// it must hold in the end, bit for bit.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "oracle.h"
#include "plan/catalog.h"
#include "simulate.h"

namespace ringdp::plan::testing {

struct Case {
  AlgorithmChoice algorithm = AlgorithmChoice::kDirect;
  Order order = Order::kRank;
  Problem problem;                          // rank, sends and recvs are ignored
  std::vector<std::vector<int64_t>> sends;  // all_to_all: by rank; empty: all parts are of problem.count
  int64_t unit = 1;                         // in elements, of the rotated ring's chunks
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
  if (p.roots) text += ", roots " + list_of(p.roots->numbers());
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

// Every way to put ranks on hosts in their order.
inline std::vector<std::vector<int>> all_hosts(int world) {
  std::vector<std::vector<int>> all;
  for (unsigned starts = 0; starts < 1u << (world - 1); ++starts) {
    std::vector<int>& hosts = all.emplace_back(1);
    for (int r = 1; r < world; ++r) {
      if (starts >> (r - 1) & 1) hosts.push_back(r);
    }
  }
  return all;
}

// Elements of each input and output of one rank, as plan.h lists them.
inline std::vector<int64_t> input_counts(const Case& c, int rank) {
  const Problem& p = c.problem;
  std::vector<int64_t> parts, sent;
  for (int q = 0; q < p.world; ++q) parts.push_back(p.part(q)), sent.push_back(c.sent(rank, q));
  switch (p.what) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      return std::vector<int64_t>(p.contributed(rank), p.count);
    case Collective::kAllGather:
    case Collective::kGather:
      return {p.part(rank)};
    case Collective::kReduceScatter: {
      std::vector<int64_t> of_roots;
      for (int k = 0; k < p.contributed(rank); ++k) of_roots.insert(of_roots.end(), parts.begin(), parts.end());
      return of_roots;
    }
    case Collective::kScatter:
      return rank == p.root ? parts : std::vector<int64_t>{};
    case Collective::kAllToAll:
      return sent;
    case Collective::kBarrier:
      break;
  }
  return {};
}

inline std::vector<int64_t> output_counts(const Case& c, int rank) {
  const Problem& p = c.problem;
  std::vector<int64_t> parts, received;
  for (int q = 0; q < p.world; ++q) parts.push_back(p.part(q)), received.push_back(c.sent(q, rank));
  const bool is_root = rank == p.root;
  switch (p.what) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      return {p.count};
    case Collective::kReduce:
      return is_root ? std::vector<int64_t>{p.count} : std::vector<int64_t>{};
    case Collective::kAllGather:
      return parts;
    case Collective::kGather:
      return is_root ? parts : std::vector<int64_t>{};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {p.part(rank)};
    case Collective::kAllToAll:
      return received;
    case Collective::kBarrier:
      break;
  }
  return {};
}

// In place: the tensor of the result is the tensor (or one of the tensors) of the input.
struct Tensors {
  std::vector<Bytes> inputs, outputs;
  bool in_place = false;
  size_t shared_input = 0, shared_output = 0;

  Tensors(const Case& c, int rank) {
    const DType dtype = c.problem.dtype;
    for (const int64_t count : input_counts(c, rank)) {
      inputs.push_back(random_tensor(count, dtype, c.seed * 10007 + rank * 101 + inputs.size()));
    }
    for (const int64_t count : output_counts(c, rank)) {
      outputs.emplace_back(count * size_of(dtype), std::byte{0xee});
    }
    const bool wanted = c.in_place && c.problem.what != Collective::kAllToAll;
    in_place = (wanted || c.problem.what == Collective::kBroadcast) && !inputs.empty() && !outputs.empty();
    shared_input = inputs.size() > 1 ? rank : 0;
    shared_output = outputs.size() > 1 ? rank : 0;
  }
  Job job(const Plan& plan) {
    Job job{&plan, {}, {}};
    for (Bytes& t : inputs) job.inputs.push_back({t.data(), static_cast<int64_t>(t.size())});
    for (Bytes& t : outputs) job.outputs.push_back({t.data(), static_cast<int64_t>(t.size())});
    if (in_place) job.outputs[shared_output] = job.inputs[shared_input];
    return job;
  }
  const Bytes& result(size_t i) const { return in_place && i == shared_output ? inputs[shared_input] : outputs[i]; }
  bool kept_inputs_of(const Tensors& start) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!(in_place && i == shared_input) && inputs[i] != start.inputs[i]) return false;
    }
    return true;
  }
};

// Where the fold of an element starts: in the rotated ring it depends on the chunk.
inline int first_rank(const Case& c, int owner, int64_t element) {
  if (c.algorithm != AlgorithmChoice::kRing || c.order == Order::kRank) return 0;
  if (c.problem.what == Collective::kReduce) return 0;
  if (c.problem.what == Collective::kReduceScatter) return (owner + 1) % c.problem.world;
  int chunk = 0;
  while (element >= balanced_part(c.problem.count, c.problem.world, chunk, c.unit).end) ++chunk;
  return chunk;
}

// The sum of a node of the tree of leaves by its definition, of element i of what ranks contribute for `owner`.
inline double sum_of_node(const Problem& p, const std::vector<Tensors>& start, LeafNode node, int owner, int64_t i) {
  for (int rank = 0; rank < p.world; ++rank) {
    for (int k = 0; k < p.contributed(rank); ++k) {
      if (p.roots->by_rank[rank][k] != node) continue;
      const int tensor = p.what == Collective::kReduceScatter ? k * p.world + owner : k;
      return load(start[rank].inputs[tensor].data(), i, p.dtype);
    }
  }
  const int middle = node.begin + (node.end - node.begin + 1) / 2;
  return combine(sum_of_node(p, start, {node.begin, middle}, owner, i),
                 sum_of_node(p, start, {middle, node.end}, owner, i), wide_of(p.dtype), ReduceOp::kSum);
}

inline Bytes sum_of_roots(const Problem& p, const std::vector<Tensors>& start, int owner) {
  Bytes sum(p.count * size_of(p.dtype));
  for (int64_t i = 0; i < p.count; ++i) {
    const double all = sum_of_node(p, start, {0, p.roots->micro_batches}, owner, i);
    store(sum.data(), i, p.dtype, p.op == ReduceOp::kAvg ? divided(all, p.world, wide_of(p.dtype)) : all);
  }
  return sum;
}

// Input `tensor` of all ranks, summed in the algorithm's order, for rank `owner`.
inline Bytes sum_of(const Case& c, const std::vector<Tensors>& start, int tensor, int owner) {
  const Problem& p = c.problem;
  const bool tree = c.algorithm == AlgorithmChoice::kTree && p.what != Collective::kReduceScatter;
  const bool sums = p.op == ReduceOp::kSum || p.op == ReduceOp::kAvg;
  const bool balanced = c.order == Order::kTree && sums && is_floating(p.dtype);
  const int root = p.what == Collective::kReduce ? p.root : 0;
  if (p.roots) return sum_of_roots(p, start, owner);
  if (p.travels_encoded()) {
    std::vector<Bytes> tensors;
    for (const Tensors& t : start) tensors.push_back(t.inputs[tensor]);
    return encoded_sum(p.wire, tensors, p.dtype, p.op, p.what == Collective::kAllReduce);
  }
  std::vector<const std::byte*> everyones;
  for (const Tensors& t : start) everyones.push_back(t.inputs[tensor].data());
  Bytes sum(start[0].inputs[tensor].size());
  for (int64_t i = 0; i < static_cast<int64_t>(sum.size()) / size_of(p.dtype); ++i) {
    if (balanced) {
      fold_as_balanced_tree(everyones, i, p.dtype, p.op, sum.data());
    } else if (tree) {
      fold_as_tree(everyones, i, root, p.dtype, p.op, sum.data());
    } else {
      fold_serially(everyones, i, first_rank(c, owner, i), p.dtype, p.op, sum.data());
    }
  }
  return sum;
}

// The outputs that rank `rank` must end with, computed from everyone's inputs.
inline std::vector<Bytes> expected(const Case& c, const std::vector<Tensors>& start, int rank) {
  const Problem& p = c.problem;
  const bool is_root = rank == p.root;
  std::vector<Bytes> outputs;
  switch (p.what) {
    case Collective::kAllReduce:
      return {sum_of(c, start, 0, rank)};
    case Collective::kReduce:
      return is_root ? std::vector<Bytes>{sum_of(c, start, 0, rank)} : outputs;
    case Collective::kReduceScatter:
      return {sum_of(c, start, rank, rank)};
    case Collective::kBroadcast:
      return {start[p.root].inputs[0]};
    case Collective::kScatter:
      return {start[p.root].inputs[rank]};
    case Collective::kGather:
    case Collective::kAllGather:
      for (const Tensors& t : start) outputs.push_back(t.inputs[0]);
      return is_root || p.what == Collective::kAllGather ? outputs : std::vector<Bytes>{};
    case Collective::kAllToAll:
      for (const Tensors& t : start) outputs.push_back(t.inputs[rank]);
      return outputs;
    case Collective::kBarrier:
      break;
  }
  return outputs;
}

}  // namespace ringdp::plan::testing
