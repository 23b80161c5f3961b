#include "backend/allocation_scope.h"

#include <unistd.h>

#include <mutex>
#include <vector>

#include "backend/errors.h"

namespace ringdp::backend {
namespace {

struct Scope {
  HeapAllocator* allocator;
  int owner_pid;  // forked children do not have the heap: their tensors are ordinary
};
thread_local std::vector<Scope> scopes;

class ScopedAllocator final : public c10::Allocator {
 public:
  explicit ScopedAllocator(c10::Allocator& ordinary) : ordinary_(ordinary) {}

  c10::DataPtr allocate(size_t bytes) override {
    const bool shared = !scopes.empty() && bytes >= kSmallestInScope && scopes.back().owner_pid == ::getpid();
    return shared ? scopes.back().allocator->allocate(bytes) : ordinary_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return ordinary_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::Allocator& ordinary_;
};

}  // namespace

void enter_allocation_scope(HeapAllocator& allocator) {
  static std::once_flag installed;
  std::call_once(installed, [] {
    // Lives as long as the process, like torch's: storages keep a plain pointer to it.
    auto* const scoped = new ScopedAllocator(*c10::GetAllocator(c10::kCPU));
    c10::SetAllocator(c10::kCPU, scoped, /*priority=*/UINT8_MAX);
  });
  scopes.push_back({&allocator, ::getpid()});
}

void leave_allocation_scope() {
  if (scopes.empty()) refuse("this thread is in no scope of shared tensors");
  scopes.pop_back();
}

}  // namespace ringdp::backend
