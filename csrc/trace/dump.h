// A process's events in torch's flight-recorder format (which torch.distributed.flight_recorder and `torchfrtrace`
// open), and as a file where RINGDP_TRACE asks for it. All events are also there under the key "ringdp", which those
// tools ignore.
//
// An entry is a collective whose call is still among the events. Its sizes are flat: numbers of elements. Its backend
// is called gloo, since torch's tools refuse names they do not know. Uneven parts look even.
#pragma once
#include <string>

#include "trace/recorder.h"

namespace ringdp::trace {

// The process that writes. The two times were read together: they anchor the events to the wall clock.
struct Process {
  int rank = 0;  // in the job
  int pid = 0;
  std::string host, boot;  // boot: of the host's kernel; processes with the same boot share a steady_clock
  int64_t wall_ns = 0, steady_ns = 0;
};
Process this_process(int rank);

std::string flight_of(const Recorder& recorder, const Process& process);  // a pickle

// Writes `folder`/rank_<n>, n being the rank in the job: that of the first group. Makes the folder; a file that is
// there is replaced in one step. Error(kInternal) names the file.
void write_dump(const Recorder& recorder, const std::string& folder);

// Once per process, after its first group was made: removes what an earlier run has left in its file, so that a rank
// that is killed leaves none. Never throws.
void clear_dump_if_asked() noexcept;

// write_dump() for this process's recorder and the folder of RINGDP_TRACE, if it is set: when a group fails or is left.
// Any thread, never throws, waits two seconds at most: a file that cannot be written is one warning.
void dump_if_asked() noexcept;

}  // namespace ringdp::trace
