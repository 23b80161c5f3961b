// What plans over several hosts share: where a rank is, and how a tensor goes through the slots of its host.
#pragma once
#include "plan/arena.h"

namespace ringdp::plan {

// Where a rank is among the hosts of a problem, and how many ranks the smallest host has. Hosts must not be empty.
struct HostPlace {
  explicit HostPlace(const Problem& problem);

  // The rank with this rank's place on host `on` (modulo the number of hosts).
  int counterpart(const Problem& problem, int on) const { return problem.hosts[(on + hosts) % hosts] + member; }

  int hosts, host = 0;          // how many, and this rank's
  int member = 0, members = 0;  // this rank's place on its host, and how many are there
  int smallest;                 // number of ranks of the smallest host
};

// A tensor in stages of so many elements, the same on every host. A stage is cut into as many pieces as the smallest
// host has ranks; piece i belongs to the i-th rank of every host. Borrows its arguments.
class HostStages {
 public:
  HostStages(const Problem& problem, const HostPlace& at, const Builder& builder, ArenaChannel& arena, int64_t elements)
      : problem_(problem), at_(at), builder_(builder), arena_(arena), elements_(elements) {}

  int count() const { return static_cast<int>(ceil_div(problem_.count, elements_)); }
  Extent piece(int stage, int owner) const;
  // Where a slot holds the piece for an owner of a rank's `root`th contribution. No rank copies to the first one of its
  // own.
  int place(int owner, int root) const { return root * at_.smallest + owner; }

  bool alone() const { return at_.members == 1; }  // then slots are not used
  void barrier();
  void copy_in(int stage);   // what this rank contributes to the pieces of others; behind the last stage nothing
  void copy_out(int stage);  // results, which owners have copied to their own pieces

 private:
  const Problem& problem_;
  const HostPlace& at_;
  const Builder& builder_;
  ArenaChannel& arena_;
  const int64_t elements_;
};

}  // namespace ringdp::plan
