// Reports when the backward pass enters and leaves the part of the autograd graph that one call of a module created.
//
// Autograd numbers nodes in the order of their creation (per thread) and runs them in reverse. The nodes of a call are
// those reachable from its outputs whose number is at least the one that was next when the call began. Only hooks are
// added, no nodes, so gradients are summed in the same order as without a watch. A pass enters before the first node of
// an output runs. It leaves when all nodes have run that lead to no other node of the call; gradients of the call's
// parameters may still be on their way to .grad then, which needs no parameter values. A pass that runs only some of
// the nodes never leaves; the next pass enters again. Callbacks run on the thread of the backward pass, without the
// GIL. Hooks live as long as the graph.
#pragma once
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace ringdp::zero {

// The number of the autograd node that this thread creates next.
uint64_t next_node();

class BackwardWatch {
 public:
  using Callback = std::function<void()>;

  // Watches the nodes that these outputs reach, from number `since` on. False if there are none: no callbacks.
  static bool over(const std::vector<at::Tensor>& outputs, uint64_t since, Callback enter, Callback leave);

 private:
  static constexpr int kNone = -1;
  class EnterHook;
  class LeaveHook;
  BackwardWatch(size_t last_nodes, Callback enter, Callback leave);
  void entered();
  void last_node_ran();

  const size_t last_nodes_;
  const Callback enter_, leave_;
  std::atomic<int> pass_{kNone};  // the graph task that has entered
  std::atomic<size_t> pending_{0};
};

}  // namespace ringdp::zero
