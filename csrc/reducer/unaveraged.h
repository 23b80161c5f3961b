// Which gradients in .grad no synchronised pass has averaged.
//
// Guarded by the reducer's lock, except passes() and any(). An averaged gradient is recognised by the identity of its
// tensor; a weak reference keeps that address from being reused without keeping the memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ringdp::reducer {

class Unaveraged {
 public:
  // kKept: from a pass under no_sync(), on purpose. kLate: added after its pass had been averaged, or by a pass that
  // did not go through the wrapper. kForeign: set by the user.
  enum class Cause : uint8_t { kNone, kKept, kLate, kForeign };

  struct Found {
    size_t index = 0;
    Cause cause = Cause::kNone;
  };

  explicit Unaveraged(size_t parameters) : causes_(parameters, Cause::kNone), averaged_(parameters) {}

  void begin_synchronised() { keeps_ = false; }
  void begin_kept() { keeps_ = true; }
  void add(size_t index, const at::Tensor& parameter);              // a gradient that belongs to no synchronised pass
  void mark_averaged(const std::vector<at::Tensor>& parameters);    // a synchronised pass has averaged every .grad
  void assume_averaged(const std::vector<at::Tensor>& parameters);  // every .grad, as it is now
  void forget();

  int64_t passes() const { return passes_; }  // synchronised passes that have completed
  bool any() const { return any_; }           // kept or late gradients, which may have been zeroed since
  std::vector<Found> of(const std::vector<at::Tensor>& parameters) const;  // compares each .grad as it is now

  // A parameter that has changed since a late gradient was added to it: an optimizer has stepped with that gradient.
  std::optional<size_t> stepped(const std::vector<at::Tensor>& parameters) const;
  // The same of kept gradients, which is not an error.
  bool stepped_kept(const std::vector<at::Tensor>& parameters) const;

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Added {
    size_t index;
    int64_t version;  // the parameter's
  };

  bool keeps_ = false;
  std::atomic<bool> any_{false};
  std::atomic<int64_t> passes_{0};
  std::vector<Cause> causes_;
  std::vector<std::optional<Weak>> averaged_;  // the .grad that the latest pass left
  std::vector<Added> late_;
  std::optional<Added> kept_;  // the first
};

}  // namespace ringdp::reducer
