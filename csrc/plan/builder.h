// Writes a plan: channels, steps in channel order, scratch memory, and handles that let one step wait for another.
//
// Single-threaded; a Builder is used for one plan. Extents are in elements, offsets in Ref in bytes.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"
#include "plan/plan.h"

namespace ringdp::plan {

class Builder {
 public:
  Builder(const std::string& algorithm, const Problem& problem);

  int add_channel(const std::string& name);
  int add_send_channel(int peer) { return add_channel("send>" + std::to_string(peer)); }
  int add_recv_channel(int peer) { return add_channel("recv<" + std::to_string(peer)); }

  // Each appends one step to `channel` and returns the handle that is satisfied once that step is over.
  After send(int channel, int peer, int round, const Ref& src, std::vector<After> after = {});
  After recv(int channel, int peer, int round, const Ref& dst, std::vector<After> after = {});
  After send_announced(int channel, int peer, int round, const Ref& src);
  After recv_announced(int channel, int peer, int round, const Ref& dst);
  // Sources are those of all ranks, or are combined in the order listed if the problem has no tree.
  After fold(int channel, std::vector<Ref> srcs, std::vector<Ref> dsts, bool finish, std::vector<After> after = {});
  After fold_along(const AddProgram& program, int channel, std::vector<Ref> srcs, std::vector<Ref> dsts, bool finish,
                   std::vector<After> after = {});
  After copy(int channel, const Ref& src, const Ref& dst, std::vector<After> after = {});
  After copy_to_all(int channel, const Ref& src, std::vector<Ref> dsts);  // kernels only: loads once
  After encode(int channel, const Ref& src, const Ref& dst, std::vector<After> after = {});
  After decode(int channel, const Ref& src, const Ref& dst, std::vector<After> after = {});
  After arrive(int channel);
  After wait(int channel);
  After post(int channel, int peer, int round);
  After await(int channel, int peer, int round);
  After push(int channel, const Ref& src);

  Ref input(int tensor, Extent elements) const { return user(Space::kInput, tensor, elements); }
  Ref output(int tensor, Extent elements) const { return user(Space::kOutput, tensor, elements); }
  Ref peer_input(int member, Extent elements, int root = 0) const;
  Ref peer_output(int member, Extent elements) const { return user(Space::kPeerOutput, member, elements); }
  Ref slot(int member, int stage, int64_t byte_offset, int64_t count) const;
  Ref pushed(int member, Extent elements) const { return user(Space::kPushed, member, elements); }
  static Ref scratch(int64_t byte_offset, Form form, int64_t count);

  // Reserves `bytes` more of scratch and returns their offset, aligned so that no two share a cache line.
  int64_t reserve_scratch(int64_t bytes);

  Plan finish() { return std::move(plan_); }

 private:
  After append(int channel, Step step);
  Ref user(Space space, int tensor, Extent elements) const;

  Plan plan_;
  AddProgram whole_;  // over what all ranks contribute; empty: in the order listed
  bool outputs_nontemporal_;
  int64_t line_bytes_;
  int32_t written_ = 0;  // steps
};

}  // namespace ringdp::plan
