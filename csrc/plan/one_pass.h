// One pass: plans over tensors that lie in memory that all ranks map, heaps of a host's ranks or memory of devices. No
// slots: every input byte is read where it lies and every output byte is written once.
//
// all_reduce, reduce: rank r owns slice r, reduces it from all tensors in rank order and stores it to all receivers.
// reduce_scatter: every rank reduces its part from all. all_gather, broadcast, gather, scatter, all_to_all: each part
// goes from its owner's tensor to the tensor of each rank that gets it.
//
// On a host the rank that gets a part copies it, but in a gather the one that has it, so that the root does not copy
// alone. Executors begin such a plan when all ranks have entered the
// collective, because only their headers say where the tensors lie; so no barrier is needed ahead. The one at the end
// ensures that no rank accesses another's tensors any more. An all_to_all has such a plan only with equal parts:
// otherwise only a part's sender knows its offset.
//
// Kernels begin without that exchange, so their plans begin with a barrier. The owner of a part stores it, because
// stores need not wait for an answer; the root of a broadcast stores a slice to each other rank, which stores it to the
// rest, so the root sends every element once. In a gather, a scatter and a reduce in one shot the root alone moves, and
// each other rank exchanges one flag with it.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

// Which tensors of one rank its peers access, so that they must lie in its heap.
struct Reached {
  bool inputs = false;  // all of them, laid end to end; if it contributes several roots, those of each
  bool outputs = false;
};
Reached reached_by_others(const Problem& problem, int rank);

// Whether a one-pass plan exists and the tensors are large enough that it beats slots, which need no exchange of
// headers ahead of their first barrier. Equal on all ranks, except for an all_to_all, whose counts differ: there all
// must agree.
bool is_for_one_pass(const Problem& problem);

// Elements of all input tensors together of a rank that has inputs (of each root), and of all outputs of one that has
// outputs.
int64_t input_elements(const Problem& problem, int rank);
int64_t output_elements(const Problem& problem);

// InvalidArgument for a collective without such a plan; kernels have one for each, with equal parts.
Plan one_pass(const Problem& problem);

}  // namespace ringdp::plan
