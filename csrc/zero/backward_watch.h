// Says when the backward pass enters and leaves the part of the graph that one call of a module has made.
//
// Nodes are numbered in the order in which they are made (per thread), and run in the reverse order: the nodes of a
// call are those that its outputs reach, down to the number that was next when it began. Nothing is added to the graph,
// so gradients are summed in the same order as without a watch. Entered: before the first node behind an output runs.
// Left: when every node has run that leads to no other node of the call; gradients of its parameters may not have
// reached .grad yet, which needs no values. A pass that runs only some of the nodes never leaves; the next pass enters
// again. Callbacks run on the thread of the backward pass, without the GIL. Hooks live as long as the graph.
#pragma once
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace ringdp::zero {

// The number of the node that this thread makes next.
uint64_t next_node();

class BackwardWatch {
 public:
  using Callback = std::function<void()>;

  // Watches what the outputs of a call reach, from node `since` on. False where the call has made no node: no
  // callbacks.
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
