// What a process dumps: torch's flight-recorder format (which torch.distributed.flight_recorder and `torchfrtrace` open),
// with all events beside it under the key "ringdp", which those tools pass over.
//
// An entry is a collective whose call is still among the events. Its sizes are flat: numbers of elements. Its backend is
// called gloo, since torch's tools refuse names they do not know. Uneven parts look even.
#pragma once
#include <string>

#include "trace/recorder.h"

namespace ringdp::trace {

// Who dumps. The two times were read together: they anchor the events to the wall clock.
struct Process {
  int rank = 0;  // in the job
  int pid = 0;
  std::string host, boot;  // boot: of the host's kernel; processes with the same boot share a steady_clock
  int64_t wall_ns = 0, steady_ns = 0;
};
Process this_process(int rank);

std::string flight_of(const Recorder& recorder, const Process& process);  // a pickle

}  // namespace ringdp::trace
