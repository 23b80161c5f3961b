// Which gradients lie in .grad without a synchronised pass having averaged them.
//
// Pure bookkeeping, guarded by the reducer's lock but for passes() and any(). What was averaged is known by its tensor:
// a weak reference keeps the address from being used again, not the memory.
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
  void add(size_t index, const at::Tensor& parameter);                // a gradient that belongs to no synchronised pass
  void settle(const std::vector<at::Tensor>& parameters);             // a synchronised pass has averaged what there is
  void take_for_averaged(const std::vector<at::Tensor>& parameters);  // .grad as it is now
  void forget();

  int64_t passes() const { return passes_; }  // synchronised passes that came to their end
  bool any() const { return any_; }           // kept or late gradients, which may have been zeroed since
  std::vector<Found> of(const std::vector<at::Tensor>& parameters) const;  // by .grad as it is now

  // A parameter that was changed after a late gradient was added: an optimizer has stepped with it.
  std::optional<size_t> stepped(const std::vector<at::Tensor>& parameters) const;

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Late {
    size_t index;
    int64_t version;  // the parameter's
  };

  bool keeps_ = false;
  std::atomic<bool> any_{false};
  std::atomic<int64_t> passes_{0};
  std::vector<Cause> causes_;
  std::vector<std::optional<Weak>> averaged_;  // .grad as the latest pass has left it
  std::vector<Late> late_;
};

}  // namespace ringdp::reducer
