// Host trees: all_reduce along the tree of leaf_tree.h over several hosts of several ranks. A host's ranks add up what
// they contribute to the roots of the host, so that each host sends one copy per root, not one per rank.
//
// As in hierarchy.h a stage, one filling of a slot, is cut into as many pieces as the smallest host has ranks, and
// piece i belongs to the i-th rank of every host. These owners cut it into one slice per host: each adds its host's
// ranks up to the host's roots, sends the others their slices, adds up the roots of all hosts in its own slice, and
// sends them the result. With R roots on a host, which is one where ranks have run whole subtrees, a host sends (R +
// 1)(H-1)/H of the tensor. Roots of hosts travel wide. Arena member index = place within the host.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace ringdp::plan {

// What the ranks of each host contribute together.
Roots roots_of_hosts(const Problem& problem);

// A valid sum along the tree on several hosts, one of which has several ranks. Direct's plan, under that name, for
// roots for which a slot is too small; InvalidArgument if it is for one tensor per rank.
Plan host_trees(const Problem& problem);

}  // namespace ringdp::plan
