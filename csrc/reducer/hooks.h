// Autograd hooks that are called when a parameter's gradient has been accumulated into .grad.
//
// The hook sits on the parameter's AccumulateGrad node, behind users' tensor hooks and post-accumulate hooks. It is
// called by whichever thread runs the backward pass, without the GIL. Removing hooks while a backward pass runs is not
// allowed.
#pragma once
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <utility>
#include <vector>

namespace ringdp::reducer {

class GradientHooks {
 public:
  using Node = torch::autograd::Node;
  // Arguments: the parameter's index, and the gradient from autograd, which may share memory with .grad.
  using OnGradient = std::function<void(size_t, const at::Tensor&)>;
  GradientHooks(const std::vector<at::Tensor>& parameters, const OnGradient& on_gradient);
  ~GradientHooks() { remove(); }
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  void remove();  // idempotent
  // Whether other hooks see the gradient from autograd, too, before or after this one.
  bool has_others(size_t index) const;

  // Parameters that a backward pass from these outputs does not reach, so that their hooks are not called.
  std::vector<size_t> unreachable_from(const std::vector<at::Tensor>& outputs) const;

 private:
  // A shared_ptr up to torch 2.12, an intrusive_ptr from then on. The variable itself holds only a weak reference.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));
  struct Hook {
    NodePtr accumulator;
    uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

}  // namespace ringdp::reducer
