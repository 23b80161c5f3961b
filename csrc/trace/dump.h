// A rank's events as a file, for those who asked for it with RINGDP_TRACE.
#pragma once
#include <string>

#include "trace/recorder.h"

namespace ringdp::trace {

// Writes `folder`/rank_<n> (flight.h), n being the rank in the job: that of the first group. Makes the folder; a file that is
// there is replaced in one step. Error(kInternal) names the file.
void write_dump(const Recorder& recorder, const std::string& folder);

// Once per process, after its first group was made: removes what an earlier run has left in its file, so that a rank that
// is killed leaves none. Never throws.
void clear_dump_if_asked() noexcept;

// write_dump() for this process's recorder and the folder of RINGDP_TRACE, if it is set: when a group fails or is left. Any
// thread, never throws, waits two seconds at most: a file that cannot be written is one warning.
void dump_if_asked() noexcept;

}  // namespace ringdp::trace
