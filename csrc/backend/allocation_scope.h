// Inside a scope, the CPU tensors that this thread makes lie in a rank's heap, whoever makes them.
//
// The first scope of a process puts an allocator of its own in front of torch's, for good; outside of scopes, and for
// small tensors, it passes every call on. Scopes nest; each thread has its own.
#pragma once
#include "backend/heap_allocator.h"

namespace ringdp::backend {

// Smaller tensors travel inline or through slots anyway.
constexpr size_t kSmallestInScope = 4096;  // bytes

void enter_allocation_scope(HeapAllocator& allocator);
void leave_allocation_scope();  // the innermost; DistBackendError when there is none

}  // namespace ringdp::backend
