// One bucket: the gradients of some parameters of one dtype and device, end to end in one flat tensor.
//
// `memory` is what collectives work on: the gradients, and padding up to what the mean needs. Each gradient has a view
// into it, strided as autograd will stride that parameter's .grad (its "gradient layout contract"), so that a .grad can
// be the view. A bucket of one parameter whose .grad is no view has no memory of its own: where nothing else holds the
// memory of the .grad, that is reduced in place, without a copy. A sparse bucket is always of that kind.
//
// A sharded bucket (ZeRO stage 2) has memory only from its first gradient to the end of its reduction, which leaves
// this rank's part of the mean in `shard`; .grad is then gone. Its gradients begin at multiples of a block, so that a
// shard cuts every gradient at a multiple of one.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/allocation.h"

namespace ringdp::reducer {

struct Bucket {
  std::vector<size_t> indices;           // of its parameters
  std::vector<at::Tensor> parameters;    // in that order
  std::vector<size_t> offsets, lengths;  // of each gradient, in elements
  at::Tensor memory;                     // flat; undefined between steps in an in_place bucket
  std::vector<at::Tensor> views;         // one per gradient
  int64_t elements = 0, padded = 0;      // up to the end of the last gradient; of memory
  at::TensorOptions options;             // of memory
  bool sparse = false;
  bool in_place = false;  // no memory of its own
  bool sharded = false;
  at::Tensor shard;  // means added up since the last drop_shards(); may be undefined

  size_t pending = 0;            // gradients that have not arrived in the running backward pass
  std::vector<size_t> uncopied;  // positions whose copy waits for the rest of the bucket (batched_grad_copy)

  bool keeps_memory() const { return !in_place && !sharded; }  // between steps
};

struct BucketShape {
  int64_t granularity = 1;              // memory holds a multiple of this many elements
  int64_t shard_block = 0;              // of sharded buckets; granularity then is a multiple of it
  std::optional<at::ScalarType> dtype;  // instead of the parameters'
  bool gradients_are_views = false;
};

// Without memory.
Bucket make_bucket(const std::vector<at::Tensor>& all_parameters, std::vector<size_t> indices, bool sparse,
                   const BucketShape& shape);

// Gives a dense bucket memory with zeros between and after gradients, shared with the ranks of the host where the
// group has shared memory, and views into it. `together`: a collective call, as for lasting_memory().
void allocate(Bucket& bucket, c10d::ProcessGroup& group, bool together);

// Takes the .grad of a dense in_place bucket as its memory, when autograd laid it out as the views are, it needs no
// padding, and nothing else holds that memory. `arrived` is what autograd gave the hook, which may hold it too; may be
// undefined.
bool take_in_place(Bucket& bucket, const at::Tensor& arrived);

// Makes views point into the memory again, where the user has set `.grad.data` of one.
void renew_views(Bucket& bucket);

// At the end of a step: a bucket without memory of its own keeps no .grad alive.
void let_go(Bucket& bucket);

// Views of each gradient of `bucket` into another flat tensor of as many elements.
std::vector<at::Tensor> views_into(const at::Tensor& flat, const Bucket& bucket);

// What comm hooks get as bucket `number` of `count`. `flat`: its gradients, or a stand-in.
c10d::GradBucket as_grad_bucket(const Bucket& bucket, const at::Tensor& flat, size_t number, size_t count);

// One gradient between a parameter's .grad and its view in a bucket.

// What collectives work on: complex numbers as pairs of real ones.
at::Tensor as_reals(const at::Tensor& flat);

// A rank without a gradient contributes -0.0, the identity of IEEE addition: every sum, also one of signed zeros, has
// the bits it has without that rank.
void fill_absent(const at::Tensor& place);

// What a rank without a gradient contributes where the others have sparse ones.
at::Tensor absent_sparse(const at::Tensor& parameter);

// RuntimeError under distributed autograd (RPC), which keeps gradients to itself: there would be nothing to average.
void refuse_distributed_autograd();

// RuntimeError names the parameter when its gradient does not fit its bucket. `widens`: the bucket's type may be wider.
void check_fits(const at::Tensor& gradient, const at::TensorOptions& bucket, const std::string& name, bool widens);

// After the reduction: .grad gets `result`, by aliasing `view` (which then holds it) or by a copy into memory of its
// own, laid out as autograd would. RuntimeError when a .grad that should be the view is something else by now.
void give_view(const at::Tensor& parameter, const at::Tensor& view, const at::Tensor& result, const std::string& name);
void give_copy(const at::Tensor& parameter, const at::Tensor& result);

// Where buckets live: in shared memory of the group when its backend offers that, so that a collective on one host
// reads and writes them in place; else in ordinary memory of their device.

// The backend that serves tensors of this device; null for groups that are not made of backends.
c10::intrusive_ptr<c10d::Backend> backend_of(c10d::ProcessGroup& group, const at::Device& device);

// Whether `flat_memory` of this group and device is shared. A group of one rank has none to share it with.
bool offers_shared_memory(c10d::ProcessGroup& group, const at::Device& device);

// While it lives, gradients of these sizes that this thread's backward pass makes lie in shared memory. Null if there
// is none.
std::unique_ptr<backend::SizedScope> share_gradients_of(c10d::ProcessGroup& group, const at::Device& device,
                                                        std::vector<size_t> sizes);

// A flat tensor, uninitialised. DistBackendError when the shared memory is full.
at::Tensor flat_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options);

// The same, for memory that outlives many collectives: on devices that run these, in memory that they share.
// Collective; all ranks pass equal arguments.
at::Tensor lasting_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options);
// Collective: frees such memory of a device whose tensors are gone on all ranks.
void reclaim_memory(c10d::ProcessGroup& group, const at::Device& device);
// Whether a tensor of a device lies in such memory.
bool is_shared(c10d::ProcessGroup& group, const at::Tensor& tensor);

}  // namespace ringdp::reducer
