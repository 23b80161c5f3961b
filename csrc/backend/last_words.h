// For which exception this rank leaves its groups: its peers quote it.
#pragma once
#include <string>

namespace ringdp::backend {

// "ValueError: batch is empty": of the one that this thread of Python handles, or that has ended the script; "" without
// one, or without Python. Takes the GIL.
std::string last_words() noexcept;

}  // namespace ringdp::backend
