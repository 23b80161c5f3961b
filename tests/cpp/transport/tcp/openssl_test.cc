#include "transport/tcp/openssl.h"

#include <gtest/gtest.h>

#include "base/error.h"

#if __has_include(<openssl/ssl.h>)
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <type_traits>

namespace ringdp::transport {
namespace {

#define RD_SAME(result, name, parameters) \
  static_assert(std::is_same_v<decltype(&::name), decltype(OpenSsl::name)>, "declared otherwise by OpenSSL: " #name);
RD_OPENSSL_FUNCTIONS(RD_SAME)

}  // namespace
}  // namespace ringdp::transport
#endif

namespace ringdp::transport {
namespace {

TEST(OpenSsl, IsFoundOnceForTheProcess) {
  try {
    const OpenSsl& first = openssl();
    EXPECT_EQ(&openssl("/no/such/library"), &first);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
}

}  // namespace
}  // namespace ringdp::transport
