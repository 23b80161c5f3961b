// Arena: plans over memory that all ranks map. Every rank writes its own slot only and reads everyone's, in rank order.
//
// Tensors in heaps: one_pass()'s plan. No bytes on a link, but for an all_to_all elsewhere: a pair's sizes are known to
// that pair only, so arena() gives direct's plan, which says so. Small sums: one shot, whoever wants the result folds
// everything. Otherwise stages of one slot each, which the executor maps to the two physical slots in turn. Arena member
// index = group rank. Every plan on the arena, also for count 0, passes at least one barrier, because executors show and
// check the ranks' notes there.
//
// Why a slot is never overwritten under a reader: stages k and k+2 share a slot. With one barrier per stage, whoever
// writes stage k+2 has passed the barrier of stage k+1, and everyone arrived there after reading stage k. The staged
// sum needs more, see its loop. The next collective goes on with the other slot, and the same holds across it.
#pragma once
#include "plan/arena_lane.h"
#include "plan/plan.h"

namespace ringdp::plan {

// Of an all_reduce or reduce: no larger than one_shot_bytes, and than a slot.
bool is_one_shot(const Problem& problem);

// InvalidArgument when slot_bytes has no cache line for each rank.
Plan arena(const Problem& problem);

// The two halves behind arena(): what folds and what only moves.
void reduce_in_arena(const Problem& problem, const Builder& builder, ArenaLane& lane);
void move_in_arena(const Problem& problem, const Builder& builder, ArenaLane& lane);

}  // namespace ringdp::plan
