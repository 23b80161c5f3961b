// How a group starts a collective: which plan, and whether it runs on the tensors where they lie.
#include <algorithm>
#include <optional>
#include <utility>

#include "comm/group.h"
#include "comm/local_exchange.h"
#include "plan/catalog.h"
#include "plan/one_pass.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

constexpr size_t kMaxPlans = 128;

// Elements of every part of an all_to_all, as this rank called it; nothing when they differ.
std::optional<int64_t> equal_part(const OpDesc& d) {
  if (d.what != plan::Collective::kAllToAll || d.sends.empty()) return std::nullopt;
  const auto all_are_first = [&](const std::vector<int64_t>& parts) {
    return std::count(parts.begin(), parts.end(), d.sends[0]) == static_cast<std::ptrdiff_t>(parts.size());
  };
  if (!all_are_first(d.sends) || !all_are_first(d.recvs)) return std::nullopt;
  return d.sends[0];
}

}  // namespace

void Group::start(Op& op) {
  started_ = last_moved_ = Deadline::Clock::now();
  log_.started(op.desc(), trace::in_ns(started_));
  in_heaps_ = false;
  if (fabric_.arena) first_barrier_ = fabric_.arena->arrived(fabric_.arena->index()) + 1;
  const plan::Problem problem = problem_of(op.desc());
  collective::Buffers& buffers = op.request_.buffers;
  buffers.divisor = op.desc().divisor;
  const bool large = heaps_are_shared() && plan::is_for_one_pass(problem);
  placements_.assign(large ? config_.world : 0, {});
  Placement own;
  if (large) own = placements_[config_.rank] = place(problem, buffers, *mesh_.arena);
  collective::Opening opening;
  opening.seq = op.desc().seq;
  const auto& digests = op.request_.digests;
  if (digests) {
    digests->all.assign(config_.world, 0);
    digests->all[config_.rank] = digests->own;
    buffers.contributions = &digests->summed;
  }
  opening.note = encode(op.desc(), own, log_.remarks(digests ? digests->own : 0));
  opening.check = [this, mine = op.desc(), digests](int rank, const transport::Note& note) {
    check_same(mine, config_.rank, note, rank);
    if (!placements_.empty()) placements_[rank] = placement_in(note);
    const Remarks theirs = remarks_in(note);
    if (digests) digests->all[rank] = theirs.digest;
    log_.noted(rank, theirs);
  };
  notes_.emplace(fabric_, config_.rank, config_.world, std::move(opening));
  if (large && allows_heaps(problem, config_.rank, own, mesh_.arena->heap_bytes())) {
    expose(problem, own);
    notes_->post();  // the plan depends on everybody's
  } else {
    run_plan(op, problem);
  }
}

// All ranks share one arena with heaps, and nothing else than its plans was asked for.
bool Group::heaps_are_shared() const {
  return on_arena_ && has_heap() && mesh_.arena->size() == config_.world;
}

bool Group::meet(Op& op) {
  const bool moved = notes_->advance();
  if (!notes_->all_checked()) return moved;
  plan::Problem problem = problem_of(op.desc());
  auto located = locate(problem, placements_, *mesh_.arena);
  problem.in_heaps = located.has_value();
  in_heaps_ = problem.in_heaps;
  if (!located) exposed_.reset();
  if (located) op.request_.buffers.peers = std::move(*located);
  run_plan(op, problem);
  return true;
}

void Group::run_plan(Op& op, const plan::Problem& problem) {
  plan_ = plan_for(problem);
  log_.running(plan_->algorithm);
  executor_.emplace(*plan_, std::move(op.request_.buffers), fabric_, workspace_, std::move(*notes_));
  notes_.reset();
}

plan::Problem Group::problem_of(const OpDesc& d) const {
  plan::Problem problem;
  problem.rank = config_.rank;
  problem.world = config_.world;
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
  if (const auto part = equal_part(d)) {
    problem.count = *part;
  } else {
    problem.sends = d.sends;
    problem.recvs = d.recvs;
  }
  problem.one_shot_bytes = mesh_.settings.thresholds.one_shot_bytes(config_.world);
  problem.past_caches_bytes = mesh_.settings.thresholds.past_caches_bytes;
  problem.one_pass_bytes = mesh_.settings.thresholds.one_pass_bytes(config_.world);
  return problem;
}

std::shared_ptr<const plan::Plan> Group::plan_for(const plan::Problem& p) {
  const PlanKey key{p.what, p.dtype, p.op, p.root, p.count, p.counts, p.sends, p.recvs, p.in_heaps};
  if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();
  const collective::Choice choice = collective::select(mesh_.settings, topology_, p.what, p.shared_bytes());
  plan::Problem problem = p;
  problem.wire = choice.wire;
  auto plan = std::make_shared<const plan::Plan>(plan::make_plan(choice.algorithm, choice.order, problem));
  plans_.emplace(key, plan);
  return plan;
}

std::string Group::why_no_shared_heaps() const {
  if (!mesh_.arena || mesh_.arena->size() != config_.world) return "not all ranks share memory of one host";
  return has_heap() ? "" : "heap_bytes is 0, or there was no address space for a heap on some rank";
}

std::vector<std::byte*> Group::heaps() const {
  std::vector<std::byte*> heaps;
  for (int member = 0; has_heap() && member < mesh_.arena->size(); ++member) {
    heaps.push_back(mesh_.arena->heap_at(member));
  }
  return heaps;
}

bool Group::is_process_of(int socket, int rank) const {
  return transport::is_process(socket, mesh_.peers[rank].identity, mesh_.peers[config_.rank].identity);
}

std::shared_ptr<transport::Heap> Group::heap() const {
  refuse_in_child();
  if (has_heap()) return mesh_.arena->heap();
  throw Error(ErrorKind::kInvalidArgument,
              "process group " + config_.name + " has no memory that ranks share: " +
                  (mesh_.arena ? "heap_bytes is 0, or there was no address space for a heap on some rank"
                               : "the ranks of this host are not connected by shared memory") +
                  "; use an ordinary tensor");
}

}  // namespace ringdp::comm
