// Writes a process's events in torch's flight-recorder format (which torch.distributed.flight_recorder and
// `torchfrtrace` open), to a file if RINGDP_TRACE names a folder. It also contains all events under the key "ringdp",
// which those tools ignore.
//
// An entry is a collective whose call is still among the events. Its sizes are numbers of elements, not shapes. Its
// backend is called gloo, because torch's tools refuse names they do not know. Uneven parts look even.
#pragma once
#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "trace/recorder.h"

namespace ringdp::trace {

// The process that writes. Both times were read at one moment, so they map the events to the wall clock.
struct Process {
  int rank = 0;  // global rank
  int pid = 0;
  std::string host, boot;  // boot: of the host's kernel; processes with the same boot share a steady_clock
  int64_t wall_ns = 0, steady_ns = 0;
};
Process this_process(int rank);

std::string flight_of(const Recorder& recorder, const Process& process);  // a pickle

// Writes `folder`/rank_<n>, where n is the global rank: that of the first group. Creates the folder; replaces an
// existing file atomically. Error(kInternal) names the file.
void write_dump(const Recorder& recorder, const std::string& folder);

// Calls that use the folder of RINGDP_TRACE, one at a time. It may be on a server that does not answer, and a driver or
// a group's first call must not wait for it long: a call that does not return in time is abandoned with
// Error(kInternal), and none is made after it. Any thread.
class FolderCalls {
 public:
  explicit FolderCalls(std::chrono::nanoseconds patience = std::chrono::seconds(2)) : patience_(patience) {}
  void make(const std::function<void()>& call);  // rethrows its exceptions

 private:
  const std::chrono::nanoseconds patience_;
  std::mutex mutex_;  // guards is_away_; groups may fail at the same time
  bool is_away_ = false;
};

// Once per process, after its first group was created: removes the file of an earlier run, so that a rank that is
// killed leaves none. Never throws.
void clear_dump_if_asked() noexcept;

// write_dump() for this process's recorder and the folder of RINGDP_TRACE, if it is set; called when a group fails or
// is left. Any thread, never throws, waits two seconds at most; warns once if the file cannot be written.
void dump_if_asked() noexcept;

}  // namespace ringdp::trace
