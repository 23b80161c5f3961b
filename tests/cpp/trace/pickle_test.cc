// That Python reads it is shown by tests/python/tools/observe/test_dump.py; here the bytes, as the protocol defines
// them.
#include "trace/pickle.h"

#include <gtest/gtest.h>

namespace ringdp::trace {
namespace {

std::string literal(const char* bytes, size_t size) { return {bytes, size}; }

TEST(Pickle, Numbers) {
  Pickle out;
  out.add(int64_t{-2});
  EXPECT_EQ(out.finish(), literal("\x80\x02\x8a\x08\xfe\xff\xff\xff\xff\xff\xff\xff.", 13));
}

TEST(Pickle, TextsAreCountedInBytes) {
  Pickle out;
  out.add("\xc3\xa9t");
  EXPECT_EQ(out.finish(), literal("\x80\x02X\x03\x00\x00\x00\xc3\xa9t.", 11));
}

TEST(Pickle, ContainersNest) {
  Pickle out;
  out.begin_dict();
  out.add("k");
  out.begin_list();
  out.begin_tuple();
  out.add_bool(true);
  out.add_none();
  out.end_tuple();
  out.end_list();
  out.end_dict();
  EXPECT_EQ(out.finish(), literal("\x80\x02}(X\x01\x00\x00\x00k]((\x88Nteu.", 19));
}

}  // namespace
}  // namespace ringdp::trace
