// Where buckets live: in shared memory of the group when its backend offers that, so that a collective on one host
// reads and writes them where they lie; else in ordinary memory of their device.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <vector>

#include "backend/allocation_scope.h"

namespace ringdp::reducer {

// The backend that serves tensors of this device; null for groups that are not made of backends.
c10::intrusive_ptr<c10d::Backend> backend_of(c10d::ProcessGroup& group, const at::Device& device);

// Whether `flat_memory` of this group and device is shared. A group of one rank has nobody to share with.
bool offers_shared_memory(c10d::ProcessGroup& group, const at::Device& device);

// While it lives, gradients of these sizes that this thread's backward pass makes lie in shared memory, if there is some;
// else null.
std::unique_ptr<backend::SizedScope> share_gradients_of(c10d::ProcessGroup& group, const at::Device& device,
                                                        std::vector<size_t> sizes);

// A flat tensor, uninitialised. DistBackendError when the shared memory is full.
at::Tensor flat_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options);

// The same, for memory that outlives many collectives: on devices that run these, in memory that they share. Collective;
// all ranks ask alike.
at::Tensor lasting_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options);
// Collective: such memory of a device ends whose tensors are gone on all ranks.
void reclaim_memory(c10d::ProcessGroup& group, const at::Device& device);
// Whether a tensor of a device lies in such memory.
bool is_shared(c10d::ProcessGroup& group, const at::Tensor& tensor);

}  // namespace ringdp::reducer
