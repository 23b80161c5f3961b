#include "reducer/hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <unordered_set>

namespace ringdp::reducer {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

class PostHook final : public torch::autograd::FunctionPostHook {
 public:
  PostHook(size_t index, GradientHooks::OnGradient on_gradient) : index_(index), on_gradient_(std::move(on_gradient)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    on_gradient_(index_, inputs.empty() ? at::Tensor() : inputs[0]);
    return outputs;
  }

 private:
  const size_t index_;
  const GradientHooks::OnGradient on_gradient_;
};

// Every node of the graphs that end in these tensors.
std::unordered_set<const Node*> nodes_behind(const std::vector<at::Tensor>& outputs) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> waiting;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.grad_fn()) {
      visit(output.grad_fn().get());
    } else if (output.requires_grad()) {
      visit(torch::autograd::impl::try_get_grad_accumulator(output).get());  // the output is a parameter itself
    }
  }
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return seen;
}

}  // namespace

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters, const OnGradient& on_gradient) {
  for (size_t index = 0; index < parameters.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[index]);
    const uintptr_t key = accumulator->add_post_hook(std::make_unique<PostHook>(index, on_gradient));
    hooks_.push_back({std::move(accumulator), key});
  }
}

void GradientHooks::remove() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
  hooks_.clear();
}

bool GradientHooks::has_others(size_t index) const { return hooks_[index].accumulator->post_hooks().size() > 1; }

std::vector<size_t> GradientHooks::unreachable_from(const std::vector<at::Tensor>& outputs) const {
  const auto reached = nodes_behind(outputs);
  std::vector<size_t> indices;
  for (size_t index = 0; index < hooks_.size(); ++index) {
    if (reached.count(hooks_[index].accumulator.get()) == 0) indices.push_back(index);
  }
  return indices;
}

}  // namespace ringdp::reducer
