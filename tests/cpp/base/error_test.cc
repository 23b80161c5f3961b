// Kinds have distinct names; errors keep what they were given; errno errors say what failed and why.
#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <set>
#include <string>

namespace ringdp {
namespace {

constexpr ErrorKind kKinds[] = {ErrorKind::kInvalidArgument, ErrorKind::kMismatch, ErrorKind::kTimeout,
                                ErrorKind::kPeerLost,        ErrorKind::kAborted,  ErrorKind::kInternal};

Error thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kAborted, "nothing was thrown");
}

TEST(Error, EveryKindHasItsOwnName) {
  std::set<std::string> names;
  for (const ErrorKind kind : kKinds) names.insert(name_of(kind));
  EXPECT_EQ(names.size(), std::size(kKinds));
  EXPECT_STREQ(name_of(ErrorKind::kPeerLost), "PeerLost");
  EXPECT_STREQ(name_of(static_cast<ErrorKind>(std::size(kKinds))), "Internal") << "one that there is not";
}

TEST(Error, KeepsKindMessageAndCulprit) {
  const Error error(ErrorKind::kPeerLost, "rank 3 died", 3);
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_STREQ(error.what(), "rank 3 died");
  EXPECT_EQ(error.culprit(), 3);
}

TEST(Error, TheCulpritIsUnknownByDefault) { EXPECT_EQ(Error(ErrorKind::kTimeout, "late").culprit(), -1); }

TEST(ThrowErrno, NamesTheCallTheReasonAndTheNumber) {
  const Error error = thrown_by([] { throw_errno("mmap of 8 bytes", ENOMEM); });
  EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  EXPECT_EQ(error.what(),
            std::string("mmap of 8 bytes: ") + std::strerror(ENOMEM) + " (errno " + std::to_string(ENOMEM) + ")");
}

TEST(ThrowErrno, SaysWhatToDoWhereTheLimitIsReachedAndOnlyThere) {
  const auto advises = [](int code) {
    return std::string(thrown_by([=] { throw_errno("pipe", code); }).what()).find("ulimit -n") != std::string::npos;
  };
  EXPECT_TRUE(advises(EMFILE));
  EXPECT_TRUE(advises(ENFILE));
  EXPECT_FALSE(advises(EPERM)) << "a sandbox forbids it";
}

TEST(ThrowErrno, TakesErrnoWhenNoCodeIsGiven) {
  const Error with_errno = thrown_by([] {
    errno = EPIPE;
    throw_errno("send");
  });
  const Error with_code = thrown_by([] { throw_errno("send", EPIPE); });
  EXPECT_STREQ(with_errno.what(), with_code.what());
}

}  // namespace
}  // namespace ringdp
