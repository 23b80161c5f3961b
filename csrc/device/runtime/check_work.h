// Refuses work that no kernel can run, before anything is launched: a bad address would end the process's context.
//
// InvalidArgument names the field, its value and what is accepted. What only all ranks together can know (that their
// steps fit) the plans' own validator has looked at.
#pragma once
#include "base/dtype.h"
#include "device/kernel/work.h"

namespace ringdp::gpu {

void check_work(const Work& work, DType element);

// STREAM: flags of block 0 only, counted by the host; nothing that waits inside a kernel.
void check_stream_work(const Work& work);

void check_adam_work(const AdamWork& work);

void check_codec_work(const CodecWork& work);

// Plans that only move know no element types: one kernel serves them all.

// Whether no step adds.
bool only_moves(const Work& work);

// The same bytes as float32. Precondition: only_moves(work), and check_work(work, element) has passed.
void count_as_float32(Work& work, DType element);

}  // namespace ringdp::gpu
