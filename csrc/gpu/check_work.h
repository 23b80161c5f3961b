// Refuses work that no kernel can run, before anything is launched: a bad address would end the process's context.
//
// InvalidArgument names the field, its value and what is accepted. What only all ranks together can know (that their
// steps fit) the plans' own validator has looked at.
#pragma once
#include "base/dtype.h"
#include "gpu/device/adam_work.h"
#include "gpu/device/codec_work.h"
#include "gpu/device/work.h"

namespace ringdp::gpu {

void check_work(const Work& work, DType element);

// STREAM: flags of block 0 only, counted by the host; nothing that waits inside a kernel.
void check_stream_work(const Work& work);

void check_adam_work(const AdamWork& work);

void check_codec_work(const CodecWork& work);

}  // namespace ringdp::gpu
