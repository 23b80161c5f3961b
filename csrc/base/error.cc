#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace ringdp {

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "InvalidArgument";
    case ErrorKind::kMismatch:
      return "Mismatch";
    case ErrorKind::kTimeout:
      return "Timeout";
    case ErrorKind::kPeerLost:
      return "PeerLost";
    case ErrorKind::kAborted:
      return "Aborted";
    case ErrorKind::kInternal:
      return "Internal";
  }
  return "Internal";
}

void throw_errno(const std::string& what, int code) {
  const bool no_descriptors = code == EMFILE || code == ENFILE;
  const char* const advice = no_descriptors ? "; raise the limit on open files (ulimit -n)" : "";
  throw Error(ErrorKind::kInternal,
              what + ": " + std::generic_category().message(code) + " (errno " + std::to_string(code) + ")" + advice);
}

void throw_errno(const std::string& what) { throw_errno(what, errno); }

}  // namespace ringdp
