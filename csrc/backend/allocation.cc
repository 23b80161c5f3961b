#include "backend/allocation.h"

#include <ATen/EmptyTensor.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "backend/errors.h"
#include "base/fork_mutex.h"

namespace ringdp::backend {
namespace {

// By address, as raw_allocate() asks for blocks that are their own context. Never destroyed: storages may outlive
// statics.
struct Blocks {
  ForkMutex mutex;  // forked children free tensors, too
  std::unordered_map<const void*, std::shared_ptr<transport::Heap>> heap_of;
};

Blocks& taken_blocks() {
  static auto* const blocks = new Blocks;
  return *blocks;
}

struct Scope {
  HeapAllocator* allocator;
  int owner_pid;  // forked children do not have the heap: their tensors are ordinary
};
thread_local std::vector<Scope> scopes;
thread_local std::vector<std::shared_ptr<SizedScope::State>> sized_scopes;  // ended ones are removed when seen

// The scope that covers a tensor of this size; null when none does.
SizedScope::State* scope_for_size(size_t bytes) {
  const auto ended = [](const auto& scope) { return !scope->open.load(std::memory_order_acquire); };
  sized_scopes.erase(std::remove_if(sized_scopes.begin(), sized_scopes.end(), ended), sized_scopes.end());
  for (const auto& scope : sized_scopes) {
    const bool wanted = std::count(scope->sizes.begin(), scope->sizes.end(), bytes) > 0;
    if (wanted && scope->owner_pid == ::getpid()) return scope.get();
  }
  return nullptr;
}

class ScopedAllocator final : public c10::Allocator {
 public:
  explicit ScopedAllocator(c10::Allocator& ordinary) : ordinary_(ordinary) {}

  c10::DataPtr allocate(size_t bytes) override {
    const bool shared = !scopes.empty() && bytes >= kSmallestInScope && scopes.back().owner_pid == ::getpid();
    if (shared) return scopes.back().allocator->allocate(bytes);
    SizedScope::State* const scope = sized_scopes.empty() ? nullptr : scope_for_size(bytes);
    return scope ? if_there_is_room(*scope, bytes) : ordinary_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    static const c10::DeleterFnPtr ordinary = ordinary_.raw_deleter();
    return [](void* memory) {
      if (!free_shared(memory)) ordinary(memory);
    };
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::DataPtr if_there_is_room(SizedScope::State& scope, size_t bytes) const {
    try {
      return scope.allocator->allocate(bytes);
    } catch (const c10::Error&) {
      scope.open = false;  // a full heap is asked once
      return ordinary_.allocate(bytes);
    }
  }

  c10::Allocator& ordinary_;
};

void install_allocator() {
  static std::once_flag installed;  // a child that is forked meanwhile makes the call itself
  std::call_once(installed, [] {
    // Lives as long as the process, like torch's: storages keep a plain pointer to it.
    auto* const scoped = new ScopedAllocator(*c10::GetAllocator(c10::kCPU));
    c10::SetAllocator(c10::kCPU, scoped, /*priority=*/UINT8_MAX);
  });
}

}  // namespace

bool free_shared(void* block) {
  std::shared_ptr<transport::Heap> heap;
  {
    const std::lock_guard lock(taken_blocks().mutex);
    const auto found = taken_blocks().heap_of.find(block);
    if (found == taken_blocks().heap_of.end()) return false;
    heap = std::move(found->second);
    taken_blocks().heap_of.erase(found);
  }
  heap->release(static_cast<std::byte*>(block));
  return true;
}

c10::DataPtr HeapAllocator::allocate(size_t bytes) {
  return guarded([&] {
    const auto heap = heap_.lock();
    if (!heap) refuse("the shared memory of this tensor is gone with its process group: make a new tensor");
    std::byte* const block = heap->take(static_cast<int64_t>(bytes));
    const std::lock_guard lock(taken_blocks().mutex);
    taken_blocks().heap_of[block] = heap;
    return c10::DataPtr(block, block, raw_deleter(), c10::Device(c10::kCPU));
  });
}

c10::DeleterFnPtr HeapAllocator::raw_deleter() const {
  return [](void* block) { free_shared(block); };
}

at::Tensor HeapAllocator::empty(int64_t elements, at::ScalarType dtype) {
  return at::detail::empty_generic({elements}, this, c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, std::nullopt);
}

void enter_allocation_scope(HeapAllocator& allocator) {
  install_allocator();
  scopes.push_back({&allocator, ::getpid()});
}

void leave_allocation_scope() {
  if (scopes.empty()) refuse("this thread is not in a scope of shared tensors");
  scopes.pop_back();
}

SizedScope::SizedScope(HeapAllocator& allocator, std::vector<size_t> sizes)
    : state_(new State{&allocator, std::move(sizes), ::getpid()}) {
  install_allocator();
  sized_scopes.push_back(state_);
}

SizedScope::~SizedScope() { state_->open.store(false, std::memory_order_release); }

}  // namespace ringdp::backend
