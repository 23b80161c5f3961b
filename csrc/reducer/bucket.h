// One bucket: the gradients of some parameters of one dtype and device, end to end in one flat tensor.
//
// `memory` is what collectives work on: the gradients, and padding up to what the mean wants. Each gradient has a view
// into it, strided as autograd will stride that parameter's .grad (its "gradient layout contract"), so that a .grad can be
// the view. A bucket of one parameter whose .grad is no view has no memory of its own: where nobody else holds the memory of
// the .grad, that is reduced where it lies, without a copy. A sparse bucket always is of that kind.
//
// A sharded bucket (ZeRO stage 2) has memory only from its first gradient to the end of its reduction, which leaves
// this rank's part of the mean in `shard`; .grad is then gone. Its gradients begin at multiples of a block, so that a
// shard cuts every gradient at a multiple of one.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <optional>
#include <vector>

namespace ringdp::reducer {

struct Bucket {
  std::vector<size_t> indices;          // of its parameters
  std::vector<at::Tensor> parameters;   // the same, in that order
  std::vector<size_t> offsets, lengths; // of each gradient, in elements
  at::Tensor memory;                    // flat; of an in_place bucket undefined between steps
  std::vector<at::Tensor> views;        // of each gradient
  int64_t elements = 0, padded = 0;     // to the end of the last gradient; of memory
  at::TensorOptions options;            // of memory
  bool sparse = false;
  bool in_place = false;                // no memory of its own
  bool sharded = false;
  at::Tensor shard;                     // means that were added up since the last drop_shards(); or undefined

  size_t pending = 0;             // gradients that have not arrived in the running backward pass
  std::vector<size_t> uncopied;   // positions whose copy waits for the rest of the bucket (batched_grad_copy)

  bool keeps_memory() const { return !in_place && !sharded; }  // between steps
};

struct BucketShape {
  int64_t granularity = 1;                  // memory holds a multiple of so many elements
  int64_t shard_block = 0;                  // of sharded buckets; granularity then is a multiple of it
  std::optional<at::ScalarType> dtype;      // instead of the parameters'
  bool gradients_are_views = false;
};

// Without memory.
Bucket make_bucket(const std::vector<at::Tensor>& all_parameters, std::vector<size_t> indices, bool sparse,
                   const BucketShape& shape);

// Gives a dense bucket memory with zeros between and after gradients, shared with the ranks of the host where the
// group has some, and views into it. `together`: of one that keeps its memory, collective (reducer/memory.h).
void allocate(Bucket& bucket, c10d::ProcessGroup& group, bool together);

// Takes the .grad of a dense in_place bucket as its memory, when autograd laid it out as the views are, it needs no
// padding, and nobody else holds that memory. `arrived` is what autograd gave the hook, which may hold it too; may be
// undefined.
bool take_in_place(Bucket& bucket, const at::Tensor& arrived);

// Views that are in the memory again, where somebody has set `.grad.data` of one.
void renew_views(Bucket& bucket);

// At the end of a step: a bucket without memory of its own keeps nothing of the .grad alive.
void let_go(Bucket& bucket);

// Views of each gradient of `bucket` into another flat tensor of as many elements.
std::vector<at::Tensor> views_into(const at::Tensor& flat, const Bucket& bucket);

// What comm hooks get to see of it, as bucket `number` of `count`. `flat`: its gradients, or a stand-in.
c10d::GradBucket as_grad_bucket(const Bucket& bucket, const at::Tensor& flat, size_t number, size_t count);

}  // namespace ringdp::reducer
