#include "zero/backward_watch.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <unordered_set>

namespace ringdp::zero {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr uint64_t kAccumulates = UINT64_MAX;  // the number of every node that writes a .grad

// The nodes at both ends of one call.
struct Part {
  std::vector<Node*> first;  // of its outputs
  std::vector<Node*> last;   // lead to no other node of the call
};

class Walk {
 public:
  explicit Walk(uint64_t since) : since_(since) {}

  Part from(const std::vector<at::Tensor>& outputs) {
    for (const at::Tensor& output : outputs) {
      Node* const node = output.grad_fn().get();
      if (inside(node) && visit(node)) part_.first.push_back(node);
    }
    while (!waiting_.empty()) {
      Node* const node = waiting_.back();
      waiting_.pop_back();
      if (!follow(*node)) part_.last.push_back(node);
    }
    return std::move(part_);
  }

 private:
  bool inside(const Node* node) const {
    return node != nullptr && node->sequence_nr() >= since_ && node->sequence_nr() != kAccumulates;
  }

  bool visit(Node* node) {
    const bool is_new = seen_.insert(node).second;
    if (is_new) waiting_.push_back(node);
    return is_new;
  }

  // Returns whether another node of the call comes after this one.
  bool follow(const Node& node) {
    bool leads_on = false;
    for (const auto& edge : node.next_edges()) {
      if (!inside(edge.function.get())) continue;
      leads_on = true;
      visit(edge.function.get());
    }
    return leads_on;
  }

  const uint64_t since_;
  std::unordered_set<const Node*> seen_;
  std::vector<Node*> waiting_;
  Part part_;
};

}  // namespace

class BackwardWatch::EnterHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit EnterHook(std::shared_ptr<BackwardWatch> watch) : watch_(std::move(watch)) {}
  variable_list operator()(const variable_list& gradients) override {
    watch_->entered();
    return gradients;
  }

 private:
  const std::shared_ptr<BackwardWatch> watch_;
};

class BackwardWatch::LeaveHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit LeaveHook(std::shared_ptr<BackwardWatch> watch) : watch_(std::move(watch)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    watch_->last_node_ran();
    return outputs;
  }

 private:
  const std::shared_ptr<BackwardWatch> watch_;
};

uint64_t next_node() { return at::sequence_number::peek(); }

BackwardWatch::BackwardWatch(size_t last_nodes, Callback enter, Callback leave)
    : last_nodes_(last_nodes), enter_(std::move(enter)), leave_(std::move(leave)) {}

bool BackwardWatch::over(const std::vector<at::Tensor>& outputs, uint64_t since, Callback enter, Callback leave) {
  const Part part = Walk(since).from(outputs);
  if (part.first.empty()) return false;
  std::shared_ptr<BackwardWatch> watch(
      new BackwardWatch(part.last.size(), std::move(enter), std::move(leave)));  // the constructor is private
  for (Node* const node : part.first) node->add_pre_hook(std::make_unique<EnterHook>(watch));
  for (Node* const node : part.last) node->add_post_hook(std::make_unique<LeaveHook>(watch));
  return true;
}

void BackwardWatch::entered() {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass_.exchange(pass) == pass) return;
  pending_ = last_nodes_;
  enter_();
}

void BackwardWatch::last_node_ran() {
  if (pass_ != torch::autograd::get_current_graph_task_id() || --pending_ > 0) return;
  pass_ = kNone;
  leave_();
}

}  // namespace ringdp::zero
