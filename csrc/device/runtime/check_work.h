// Refuses work that no kernel can run, before anything is launched: a bad address would end the process's context.
//
// InvalidArgument names the field, its value and what is accepted. That the steps of all ranks fit together is checked
// by device/plan/check.h.
#pragma once
#include "base/dtype.h"
#include "device/kernel/work.h"

namespace ringdp::gpu {

void check_work(const Work& work, DType element);

// SPIN: at least one block, which the ranks know.
void check_spin_work(const Work& work);

// STREAM: flags of block 0 only, with epochs counted by the host; no step that waits inside a kernel.
void check_stream_work(const Work& work);

void check_adam_work(const AdamWork& work);

void check_codec_work(const CodecWork& work);

// Plans that only move data do not depend on the element type: one kernel runs them all.

// Whether no step sums.
bool only_moves(const Work& work);

// The same work on the bytes as float32. Precondition: only_moves(work), and check_work(work, element) has passed.
void count_as_float32(Work& work, DType element);

}  // namespace ringdp::gpu
