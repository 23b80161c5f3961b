// A kernel on host threads: its blocks run as the device has room for them, each on kThreadsOfBlock threads.
//
// Blocks of one kernel are placed before those of the next one on the device, as hardware does: two kernels that wait
// for each other both need to fit.
#pragma once
#include <functional>

#include "stand_in/stream.h"

namespace stand_in {

// `body`: what every thread runs; the primitives tell it which one it is. Throws Refusal when the stream is of another
// device than the calling thread's current one.
void launch(Stream& stream, int blocks, size_t argument_bytes, const std::function<void()>& body);
size_t launched_blocks();     // by launch(), so far
size_t launched_arguments();  // their bytes

// Room for every kernel.
constexpr int kBlocksOfMultiprocessor = 1;

}  // namespace stand_in
