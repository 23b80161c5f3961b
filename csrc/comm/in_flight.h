// A collective that has begun, and whether the next one may begin beside it.
//
// Collectives of a group begin and end in the order of their submission. Between hosts the next ones begin while
// earlier ones still run, so that a row of them pays for the latency once: they share the links
// (collective/framed_link.h). Each rank decides for itself. Driver only.
#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collective/executor.h"
#include "comm/fingerprint.h"
#include "comm/pending.h"
#include "comm/placement.h"
#include "plan/plan.h"

namespace ringdp::comm {

// Memory that a collective accesses: bytes [begin, end) of this process.
struct Accessed {
  uintptr_t begin = 0, end = 0;
  bool written = false;
};
std::vector<Accessed> accessed_by(const plan::Problem& problem, const collective::Buffers& buffers);
// Whether one of them writes what the other accesses.
bool conflict(const std::vector<Accessed>& one, const std::vector<Accessed>& other);

struct InFlight {
  InFlight(std::shared_ptr<Op> next, plan::Problem its) : op(std::move(next)), problem(std::move(its)) {}
  InFlight(const InFlight&) = delete;  // checks of headers refer to it
  InFlight& operator=(const InFlight&) = delete;

  std::vector<int> silent_ranks() const { return executor ? executor->silent_ranks() : headers->silent_ranks(); }

  const std::shared_ptr<Op> op;
  plan::Problem problem;
  // Where collectives may run beside each other:
  std::vector<Accessed> memory;
  bool lets_others_begin = false;                     // beside it
  bool may_begin_beside_others = false;               // unless they access the same memory
  std::vector<Placement> placements;                  // by rank; empty when heaps are not considered
  std::vector<std::pair<int, Remarks>> entered;       // ranks that entered it before it was the first in flight
  std::shared_ptr<const plan::Plan> plan;             // null until it is known
  std::optional<collective::HeaderExchange> headers;  // until the plan is known
  std::optional<collective::Executor> executor;
  std::exception_ptr error;  // that it met before it was the first: earlier ones may still end well
};

}  // namespace ringdp::comm
