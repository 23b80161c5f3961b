// The six ways a call can fail. Every message names the operation, ranks and bytes, the likely cause and what to do.
#pragma once
#include <stdexcept>
#include <string>

namespace ringdp {

enum class ErrorKind {
  kInvalidArgument,  // nothing happened; the group is still usable
  kMismatch,         // ranks disagree; names both sides
  kTimeout,          // a deadline passed; names the rank that was waited for
  kPeerLost,         // a rank died or its link broke; names rank and pid
  kAborted,          // this rank or a peer called abort(), or destroyed the group with work in flight
  kInternal,         // a broken invariant or a failed system call
};

const char* name_of(ErrorKind kind);

// After any kind but kInvalidArgument the group can only be destroyed.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int culprit = -1)
      : std::runtime_error(message), kind_(kind), culprit_(culprit) {}
  ErrorKind kind() const { return kind_; }
  int culprit() const { return culprit_; }  // group rank at fault, -1 when unknown

 private:
  ErrorKind kind_;
  int culprit_;
};

// kInternal with "<what>: <strerror(code)> (errno <code>)", and what to do where that is always the same.
[[noreturn]] void throw_errno(const std::string& what, int code);
[[noreturn]] void throw_errno(const std::string& what);  // uses errno

}  // namespace ringdp
