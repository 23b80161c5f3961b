// One bucket: the gradients of some parameters of one dtype and device, end to end in one flat tensor.
//
// `memory` is what collectives work on: the gradients, and the padding that the mean needs. Each gradient has a view
// into it, with the strides that autograd gives that parameter's .grad (its "gradient layout contract"), so that .grad
// can be the view. A bucket of one parameter has no memory of its own where that saves a copy: its .grad is reduced in
// place, unless something else shares its memory. Sparse buckets are always in_place.
//
// A sharded bucket (ZeRO stage 2) has memory only from its first gradient to the end of its reduction, which leaves
// this rank's part of the mean in `shard` and no .grad. Its gradients begin at multiples of a block (shard_block
// elements), so that shards cut every gradient at block boundaries.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/capabilities.h"

namespace ringdp::reducer {

struct Bucket {
  std::vector<size_t> indices;           // of its parameters
  std::vector<at::Tensor> parameters;    // in that order
  std::vector<size_t> offsets, lengths;  // of each gradient, in elements
  at::Tensor memory;                     // flat; undefined between steps in an in_place bucket
  std::vector<at::Tensor> views;         // one per gradient
  int64_t elements = 0, padded = 0;      // without and with the padding at the end
  at::TensorOptions options;             // of memory
  bool sparse = false;
  bool in_place = false;  // no memory of its own
  bool sharded = false;
  bool of_leaves = false;  // memory is made for each leaf (leaf_sums.h)
  at::Tensor shard;        // sum of the means since the last drop_shards(); may be undefined

  size_t pending = 0;            // gradients that have not arrived in the running backward pass
  std::vector<size_t> uncopied;  // positions to be copied when the bucket is complete (batched_grad_copy)

  bool keeps_memory() const { return !in_place && !sharded && !of_leaves; }  // between steps
  // Whether the memory of its only gradient can be that of the bucket.
  bool is_one_gradient() const {
    return indices.size() == 1 && (in_place || of_leaves) && !sparse && padded == elements;
  }
  size_t bytes() const { return elements * options.dtype().itemsize(); }
  // Whether share_gradients_of() can allocate that gradient.
  bool allocates_shared() const { return is_one_gradient() && bytes() >= backend::kSmallestInScope; }
};

struct BucketShape {
  int64_t granularity = 1;              // memory holds a multiple of this many elements
  int64_t shard_block = 0;              // > 0: a sharded bucket, whose granularity is a multiple of it
  std::optional<at::ScalarType> dtype;  // instead of the parameters'
  bool in_place = true;                 // buckets of one gradient have no memory of their own
  bool of_leaves = false;
};

// A bucket without memory.
Bucket make_bucket(const std::vector<at::Tensor>& all_parameters, std::vector<size_t> indices, bool sparse,
                   const BucketShape& shape);

// Gives a dense bucket memory with zeros between and after gradients, shared with the ranks of the host where the
// group has shared memory, and views into it. `together`: a collective call, as for lasting_memory().
void allocate(Bucket& bucket, c10d::ProcessGroup& group, bool together);

// Zeros between and after the gradients in a flat tensor of that bucket.
void clear_padding(const at::Tensor& flat, const Bucket& bucket);

// The memory of the .grad of a bucket with is_one_gradient(), as a flat tensor of the bucket; undefined if the .grad
// has another layout than the view or shares its memory with something else. `arrived` is the tensor that autograd gave
// to the hook, which may share that memory; may be undefined.
at::Tensor memory_of_gradient(const Bucket& bucket, const at::Tensor& arrived);

// Makes the .grad of a dense in_place bucket its memory, and returns whether it did.
bool take_in_place(Bucket& bucket, const at::Tensor& arrived);

// Makes views point into the memory again if the user has assigned `.grad.data`.
void renew_views(Bucket& bucket);

// At the end of a step, so that an in_place or sharded bucket keeps no .grad alive.
void release_memory(Bucket& bucket);

// One view per gradient of `bucket` into another flat tensor of that size.
std::vector<at::Tensor> views_into(const at::Tensor& flat, const Bucket& bucket);

// What a communication hook gets as bucket `number` of `count`. `flat`: its gradients, or a tensor of that size.
c10d::GradBucket as_grad_bucket(const Bucket& bucket, const at::Tensor& flat, size_t number, size_t count);

// What collectives work on: complex numbers as pairs of real ones.
at::Tensor as_reals(const at::Tensor& flat);

// A rank without a gradient contributes -0.0, the identity of IEEE addition: every sum, also of signed zeros, has the
// bits that it has without that rank.
void fill_absent(const at::Tensor& place);

// What a rank without a gradient contributes if the gradients of the others are sparse.
at::Tensor absent_sparse(const at::Tensor& parameter);

// RuntimeError under distributed autograd (RPC), which does not write .grad: there would be nothing to average.
void refuse_distributed_autograd();

// Throws a RuntimeError that names the parameter if its gradient has another device or dtype than its bucket. `widens`:
// the bucket's dtype may be wider.
void check_fits(const at::Tensor& gradient, const at::TensorOptions& bucket, const std::string& name, bool widens);

// After the reduction: .grad gets `result`, either as `view`, into which it is copied, or as a copy in memory of its
// own, laid out as autograd would. RuntimeError if a .grad that should be the view is another tensor by now.
void give_view(const at::Tensor& parameter, const at::Tensor& view, const at::Tensor& result, const std::string& name);
void give_copy(const at::Tensor& parameter, const at::Tensor& result);

// Buckets are in shared memory of the group if its backend offers that, so that a collective on one host reads and
// writes them in place; otherwise in ordinary memory of their device.

// The backend that serves tensors of this device; null for groups that are not made of backends.
c10::intrusive_ptr<c10d::Backend> backend_of(c10d::ProcessGroup& group, const at::Device& device);

// What it can do beyond c10d; null for other backends. Lives as long as the group.
backend::Capabilities* capabilities_of(c10d::ProcessGroup& group, const at::Device& device);

// Whether flat_memory() of this group and device is shared; false for a group of one rank.
bool offers_shared_memory(c10d::ProcessGroup& group, const at::Device& device);

// While the result lives, tensors of these sizes in bytes that the backward pass of this thread allocates are in shared
// memory. Null if the group has none.
std::unique_ptr<backend::SizedScope> share_gradients_of(c10d::ProcessGroup& group, const at::Device& device,
                                                        std::vector<size_t> sizes);

// A flat tensor, uninitialised. DistBackendError when the shared memory is full.
at::Tensor flat_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options);

// The same for one step: ordinary memory where the shared one is full, and without a group.
at::Tensor step_memory(c10d::ProcessGroup* group, int64_t elements, const at::TensorOptions& options);

// The same for memory that is used by many collectives: on devices that run collectives, memory that they share.
// Collective; all ranks pass equal arguments.
at::Tensor lasting_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options);
// Frees such memory of a device if its tensors are gone on all ranks. Collective.
void reclaim_memory(c10d::ProcessGroup& group, const at::Device& device);
// Whether a device's tensor is in such memory.
bool is_shared(c10d::ProcessGroup& group, const at::Tensor& tensor);

}  // namespace ringdp::reducer
