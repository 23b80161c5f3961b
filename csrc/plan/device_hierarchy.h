// Hierarchy for devices: all_reduce in rank order over several hosts, memory of devices that a host's ranks share, and
// one chain of messages between hosts.
//
// The tensor is cut into as many chunks as the smallest host has ranks. Chunk i belongs to the i-th rank of every host: it
// folds its host's ranks, whose inputs it reads where they are, onto the prefix from the previous host, and sends the
// partial sum on. The last host finishes; results go once round the hosts, and each owner writes them into the outputs of
// its host's ranks. Segments of a chunk follow one another: segment s is folded on host h in round s + h, so that all hosts
// are at work; there are S + 2(H-1) rounds, the first without messages. The bytes between hosts are plan/hierarchy.h's, or
// fewer: a lone rank of the first host sends its input as it is.
//
// A host's ranks meet (kSignal, kWait) before anybody reads, when all inputs are there, and after all has been written.
// Between, nobody but a chunk's owner touches it on that host, so that a result may be where the input was.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

// A valid all_reduce of whole packs of devices, with two hosts or more. kPeerInput and kPeerOutput are by member of the
// host. Segments are as many whole packs as segment_bytes holds, at least one.
Plan device_hierarchy(const Problem& problem);

}  // namespace ringdp::plan
