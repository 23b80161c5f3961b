// What tests do that the interface of libringdp_gpu.so leaves to its caller: devices, streams and captures.
#include "stand_in/host_memory.h"
#include "stand_in/machine.h"
#include "stand_in/refusal.h"
#include "stand_in/stream.h"

using namespace stand_in;

extern "C" {

void stand_in_set_device(int device) { set_device(device); }
int stand_in_device() { return current_device(); }
size_t stand_in_pinned_bytes() { return pinned_bytes(); }
size_t stand_in_copied_bytes() { return copied_bytes(); }

Stream* stand_in_create_stream() { return create_stream(current_device()); }
void stand_in_destroy_stream(Stream* stream) { destroy_stream(stream); }
void stand_in_synchronize_stream(Stream* stream) { known(stream).synchronize(); }

void stand_in_begin_capture(Stream* stream) { known(stream).begin_capture(); }
// What the stream was given since: to be replayed any number of times, and ended once. Null when there is no graph.
void* stand_in_end_capture(Stream* stream) {
  try {
    return new std::shared_ptr<Capture>(known(stream).end_capture());
  } catch (const Refusal&) {
    return nullptr;
  }
}
void stand_in_replay(void* graph, Stream* stream) {
  for (const Job& job : (*static_cast<std::shared_ptr<Capture>*>(graph))->jobs()) known(stream).push(job);
}
void stand_in_end_graph(void* graph) { delete static_cast<std::shared_ptr<Capture>*>(graph); }
}
