// The state of a process on this host, in words, for messages about late peers.
#pragma once
#include <string>

namespace ringdp::comm {

// "running", "sleeping", "stopped by a signal (state T)", ...; "gone" when there is no such process.
std::string process_state(int pid);

}  // namespace ringdp::comm
