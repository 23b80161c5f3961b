#include "comm/plan_cache.h"

#include <algorithm>
#include <optional>

#include "comm/bootstrap_steps.h"
#include "plan/catalog.h"

namespace ringdp::comm {
namespace {

constexpr size_t kMaxPlans = 128;

// The elements of each part of an all_to_all as this rank called it; nullopt when parts differ.
std::optional<int64_t> equal_part(const OpDesc& d) {
  if (!plan::traits_of(d.what).has_splits() || d.sends.empty()) return std::nullopt;
  const auto all_are_first = [&](const std::vector<int64_t>& parts) {
    return std::count(parts.begin(), parts.end(), d.sends[0]) == static_cast<std::ptrdiff_t>(parts.size());
  };
  if (!all_are_first(d.sends) || !all_are_first(d.recvs)) return std::nullopt;
  return d.sends[0];
}

// By identities only: all ranks know those of all.
bool one_host(const Mesh& mesh) {
  return std::all_of(mesh.peers.begin(), mesh.peers.end(), [&](const Peer& peer) {
    return transport::same_host(peer.identity, mesh.peers[0].identity).same;
  });
}

}  // namespace

PlanCache::PlanCache(const Mesh& mesh)
    : mesh_(mesh),
      topology_{mesh.world, mesh.shares_one_arena(), mesh.hosts, one_host(mesh)},
      always_uses_arena_(choice(plan::Collective::kAllReduce, 0).algorithm == AlgorithmChoice::kArena) {}

plan::Problem PlanCache::problem_of(const OpDesc& d) const {
  plan::Problem problem;
  problem.rank = mesh_.rank;
  problem.world = mesh_.world;
  problem.segment_bytes = mesh_.settings.segment_bytes;
  problem.slot_bytes = planned_slot_bytes(mesh_.settings);
  problem.hosts = mesh_.hosts;
  if (is_on_devices(d.place)) return problem;  // a barrier
  problem.what = d.what;
  problem.dtype = d.dtype;
  problem.op = d.op;
  problem.root = d.root;
  problem.count = d.count;
  problem.counts = d.counts;
  problem.roots = d.roots;
  if (const auto part = equal_part(d)) {
    problem.count = *part;
  } else {
    problem.sends = d.sends;
    problem.recvs = d.recvs;
  }
  problem.one_shot_bytes = mesh_.settings.thresholds.one_shot_bytes(mesh_.world);
  problem.nontemporal_bytes = mesh_.settings.thresholds.nontemporal_bytes;
  problem.one_pass_bytes = mesh_.settings.thresholds.one_pass_bytes(mesh_.world);
  return problem;
}

std::shared_ptr<const plan::Plan> PlanCache::plan_for(const plan::Problem& p) {
  const Counts roots = p.roots ? p.roots->numbers() : Counts{};
  const Key key{p.what, p.dtype, p.op, p.root, p.count, p.counts, p.sends, p.recvs, roots, p.in_heaps};
  if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();
  const collective::Choice choice = this->choice(p.what, p.total_bytes());
  plan::Problem problem = p;
  problem.wire = choice.wire;
  auto plan = std::make_shared<const plan::Plan>(plan::make_plan(choice.algorithm, choice.order, problem));
  plans_.emplace(key, plan);
  return plan;
}

}  // namespace ringdp::comm
