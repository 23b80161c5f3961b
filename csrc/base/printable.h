// Text that another process wrote, made fit for error messages, terminals and logs.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ringdp {

// Valid UTF-8 of at most `most` bytes: control characters but the newline, and bytes that are no UTF-8, become \xNN.
std::string printable(std::string_view text, size_t most);

}  // namespace ringdp
